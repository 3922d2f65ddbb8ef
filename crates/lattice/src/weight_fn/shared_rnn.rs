//! Context embeddings of a lattice from an LSTM over label histories.
//!
//! All states of a level are computed together. A level has the histories of equal length; the
//! parent of a history lacks its last label y. Symbol: the start symbol 0 or a label, 1 to V. K_i,
//! K_h: input and recurrent kernels of all four gates; X, G: their products with label embeddings
//! and parent outputs; a: gates before σ and tanh; c, h: cell and output; d: gradient; σ: sigmoid;
//! R: width of c and h; RE: width of a label embedding.
//!
//! ```text
//! X = Embed K_i                                  a row for each symbol, once
//! level by level:
//!     G = h K_h + bias                           a row for each parent, shared by its V children
//!     a = X[y] + G[parent]        i, f, o = σ(a_i, a_f, a_o)     g = tanh(a_g)
//!     c = f c[parent] + i g       h = o tanh(c)
//! backward, from the last level, given dh:
//!     dc += dh o (1 - tanh²c)
//!     da = [dc g i(1-i), dc c[parent] f(1-f), dc i(1-g²), dh tanh(c) o(1-o)]
//!     dG = Σ_y da                 dc[parent] = Σ_y dc f         dX[y] += Σ_parents da
//!     dh[parent] += dG K_hᵀ       dK_h += hᵀ dG                 dbias += Σ dG
//! ```
use std::ops::Range;

use kernels::{Accumulate, Affine, Real, ScratchReq, View, add, par_for, parts_mut, sigmoid, tanh};

use super::Parameters;
use crate::{
    Error, Result,
    error::{expect_finite, expect_len},
};

/// Context embeddings of an LSTM over label histories, as `SharedRNNCacher` of LAST.
///
/// The embedding of the state with history `y_1 .. y_k` is the output of an LSTM after
/// `0, y_1, .., y_k` from a zero state (arXiv 2304.13134). Kernels are inputs x outputs, row-major;
/// the order of gates is i, f, g, o.
///
/// # Cost
/// 8 R² floating-point operations for each state shorter than n, and five exponentials per unit of
/// each state. Memory of two numbers per unit of each state, and of seven in backward, which
/// recomputes the states.
#[derive(Debug, Clone, Copy)]
pub struct SharedRnn<'a, F> {
    /// V, the number of labels.
    pub vocabulary: usize,
    /// n, the number of labels that a state remembers.
    pub order: usize,
    /// `Embed_0/embedding`, *(V + 1) x RE*; row 0 is the start symbol.
    pub embedding: &'a [F],
    /// `rnn_cell/ii/kernel` and those of `if`, `ig`, `io`, *RE x R* each.
    pub input: [&'a [F]; 4],
    /// `rnn_cell/hi/kernel` and those of `hf`, `hg`, `ho`, *R x R* each.
    pub recurrent: [&'a [F]; 4],
    /// `rnn_cell/hi/bias` and those of `hf`, `hg`, `ho`, *R* each.
    pub bias: [&'a [F]; 4],
}

/// Name of the label embeddings.
const EMBEDDING_NAME: &str = "weight_fn_cacher/Embed_0/embedding";
/// Gates of the LSTM, in the order of the parameters.
const GATES: [char; 4] = ['i', 'f', 'g', 'o'];
/// States of one parallel task.
const STATES_PER_TASK: usize = 8;
/// Numbers of memory for each unit of a context state.
///
/// h, c, their gradients, and the gates of a level and of its parents, with reserve.
const NUMBERS_PER_STATE_UNIT: usize = 14;
/// Numbers of memory for each unit and parameter row.
///
/// The four gates of a row: concatenated, packed, and as gradients, with reserve.
const NUMBERS_PER_PARAMETER_UNIT: usize = 24;

/// Name of a parameter of the cell; `source` is `i` for the input and `h` for the output.
fn parameter_name(source: char, gate: usize, parameter: &str) -> String {
    format!("weight_fn_cacher/rnn_cell/{source}{}/{parameter}", GATES[gate])
}

/// States of one level: those with equally long histories.
struct HistoryLevel {
    states: Range<usize>,
    /// Symbols by which each parent is extended.
    symbols: Range<usize>,
}

impl<F: Real> SharedRnn<'_, F> {
    /// R, the width of an embedding.
    pub fn width(&self) -> usize {
        self.bias[0].len()
    }

    /// RE, the width of a label embedding.
    fn embedding_width(&self) -> usize {
        self.embedding.len() / self.vocabulary.saturating_add(1)
    }

    /// C, the number of context states; saturates.
    pub fn states(&self) -> usize {
        if self.vocabulary < 2 {
            return (self.vocabulary * self.order).saturating_add(1);
        }
        let (mut total, mut level_states) = (1usize, 1usize);
        for _ in 0..self.order.min(usize::BITS as usize) {
            level_states = level_states.saturating_mul(self.vocabulary);
            total = total.saturating_add(level_states);
        }
        total
    }

    /// Checks that the parameters fit together, are finite and have `states` embeddings.
    ///
    /// # Errors
    /// Lengths that do not fit; values that are NaN or infinite, or whose sums may be; another
    /// number of states.
    pub fn check(&self, states: usize) -> Result<()> {
        let (r, re) = (self.width(), self.embedding_width());
        for (argument, size) in [
            (parameter_name('h', 0, "bias"), r),
            (EMBEDDING_NAME.to_owned(), re),
            ("vocabulary".into(), self.vocabulary),
        ] {
            if size == 0 {
                return Err(Error::shape(argument, "at least 1", 0));
            }
        }
        if self.states() != states {
            let sizes = format!("{} for {} labels and order {}", self.states(), self.vocabulary, self.order);
            return Err(Error::shape("weight_fn_cacher", format!("{states} context states"), sizes));
        }
        let check_values = |argument: &str, length: usize, values: &[F]| {
            expect_len(argument, length, values.len())?;
            expect_finite(argument, values)
        };
        check_values(EMBEDDING_NAME, (self.vocabulary + 1) * re, self.embedding)?;
        for gate in 0..4 {
            check_values(&parameter_name('i', gate, "kernel"), re * r, self.input[gate])?;
            check_values(&parameter_name('h', gate, "kernel"), r * r, self.recurrent[gate])?;
            check_values(&parameter_name('h', gate, "bias"), r, self.bias[gate])?;
        }
        let max_abs = |values: &[F]| values.iter().map(|w| w.to_f64().abs()).fold(0.0, f64::max);
        let max_abs_of = |gates: [&[F]; 4]| gates.into_iter().map(max_abs).fold(0.0, f64::max);
        let max_gate = re as f64 * max_abs(self.embedding) * max_abs_of(self.input)
            + r as f64 * max_abs_of(self.recurrent)
            + max_abs_of(self.bias);
        if max_gate > F::MAX.to_f64() {
            return Err(Error::shape("weight_fn_cacher/rnn_cell", "weights whose sums are finite", max_gate));
        }
        Ok(())
    }

    /// Memory of forward and backward, including embeddings and gradients.
    pub(crate) fn scratch(&self) -> ScratchReq {
        Self::scratch_for(self.states(), self.vocabulary, self.width(), self.embedding_width())
    }

    /// [`Self::scratch`] from the sizes C, V, R and RE.
    pub(crate) fn scratch_for(
        states: usize,
        vocabulary: usize,
        width: usize,
        embedding_width: usize,
    ) -> ScratchReq {
        // Rows of X (V + 1), K_h (R) and K_i (RE).
        let parameter_rows = vocabulary.saturating_add(1 + width + embedding_width);
        let parameters = ScratchReq::new::<F>(NUMBERS_PER_PARAMETER_UNIT * width).times(parameter_rows);
        ScratchReq::new::<F>(NUMBERS_PER_STATE_UNIT * width).times(states).and(parameters)
    }

    /// Returns the embeddings `e`, *C x R*.
    ///
    /// # Errors
    /// As [`SharedRnn::check`].
    pub fn forward(&self) -> Result<Vec<F>> {
        self.check(self.states())?;
        Ok(self.lstm_states(&LstmCell::new(self)).outputs)
    }

    /// Returns the levels of states, shortest histories first.
    fn levels(&self) -> Vec<HistoryLevel> {
        let mut levels = vec![HistoryLevel { states: 0..1, symbols: 0..1 }];
        for length in 0..self.order {
            let Range { start, end } = levels[length].states;
            let states = end..end + (end - start) * self.vocabulary;
            levels.push(HistoryLevel { states, symbols: 1..self.vocabulary + 1 });
        }
        levels
    }

    /// Computes the states of all histories, level by level.
    fn lstm_states(&self, cell: &LstmCell<F>) -> LstmStates<F> {
        let r = self.width();
        let zeros = || kernels::alloc(self.states() * r, F::ZERO);
        let mut lstm_states =
            LstmStates { outputs: zeros(), cells: zeros(), initial_state: vec![F::ZERO; r] };
        let mut parents = None;
        for level in self.levels() {
            let level_elements = level.states.start * r..level.states.end * r;
            let recurrent_gates = cell.recurrent_gates(lstm_states.parent_states(&parents, r)[0]);
            let LstmStates { outputs, cells, initial_state } = &mut lstm_states;
            let (earlier_cells, cells) = cells[..level_elements.end].split_at_mut(level_elements.start);
            let parent_cells = match &parents {
                None => &*initial_state,
                Some(parents) => &earlier_cells[element_range(parents, r)],
            };
            let tasks = (
                parts_mut(&mut outputs[level_elements], STATES_PER_TASK * r),
                parts_mut(cells, STATES_PER_TASK * r),
            );
            par_for(tasks, |task, (outputs, cells)| {
                let mut gates = vec![F::ZERO; 4 * r];
                let row_pairs = outputs.chunks_exact_mut(r).zip(cells.chunks_exact_mut(r));
                for (row, (output, cell_state)) in (task * STATES_PER_TASK..).zip(row_pairs) {
                    let (parent, symbol) = level.parent_and_symbol(row);
                    let [i, f, g, o] = cell.gates(&recurrent_gates, parent, symbol, &mut gates);
                    let parent_cell = &parent_cells[parent * r..][..r];
                    for k in 0..r {
                        cell_state[k] = f[k] * parent_cell[k] + i[k] * g[k];
                    }
                    output.copy_from_slice(cell_state);
                    tanh(output);
                    output.iter_mut().zip(&*o).for_each(|(h, &o)| *h *= o);
                }
            });
            parents = Some(level.states);
        }
        lstm_states
    }

    /// Returns the gradients of the parameters, by name.
    ///
    /// The argument is the gradient of the embeddings, *C x R*.
    ///
    /// # Panics
    /// If lengths do not match; [`SharedRnn::forward`] checks those of the parameters.
    pub fn backward(&self, gradient: &[F]) -> Parameters<F> {
        let (r, re) = (self.width(), self.embedding_width());
        let cell = LstmCell::new(self);
        let states = self.lstm_states(&cell);
        // Gradients of h and c, which each level passes to its parents, and of the parameters.
        let mut output_gradients = gradient.to_vec();
        let mut cell_gradients = kernels::alloc(gradient.len(), F::ZERO);
        let mut symbol_gradients = vec![F::ZERO; cell.symbol_gates.len()];
        let mut recurrent_gradient = vec![F::ZERO; cell.recurrent_kernel.len()];
        let mut bias_gradient = vec![F::ZERO; cell.bias.len()];
        let levels = self.levels();
        for (level_index, level) in levels.iter().enumerate().rev() {
            let parents = level_index.checked_sub(1).map(|previous| levels[previous].states.clone());
            let [parent_outputs, parent_cells] = states.parent_states(&parents, r);
            let level_elements = level.states.start * r..level.states.end * r;
            let recurrent_gates = cell.recurrent_gates(parent_outputs);
            // Gradients before σ and tanh, in parallel over states.
            let mut gates = kernels::alloc(level.states.len() * 4 * r, F::ZERO);
            let (earlier_gradients, carried_gradients) =
                cell_gradients[..level_elements.end].split_at_mut(level_elements.start);
            par_for(
                (
                    parts_mut(&mut gates, STATES_PER_TASK * 4 * r),
                    parts_mut(carried_gradients, STATES_PER_TASK * r),
                ),
                |task, (gates, carried_gradients)| {
                    let mut tanh_c = vec![F::ZERO; r];
                    let row_pairs = gates.chunks_exact_mut(4 * r).zip(carried_gradients.chunks_exact_mut(r));
                    for (row, (gates, carried)) in (task * STATES_PER_TASK..).zip(row_pairs) {
                        let (parent, symbol) = level.parent_and_symbol(row);
                        let state = level.states.start + row;
                        let elements = element_range(&(state..state + 1), r);
                        tanh_c.copy_from_slice(&states.cells[elements.clone()]);
                        tanh(&mut tanh_c);
                        let gates = cell.gates(&recurrent_gates, parent, symbol, gates);
                        let parent_cell = &parent_cells[parent * r..][..r];
                        gate_gradients(gates, &output_gradients[elements], &tanh_c, parent_cell, carried);
                    }
                },
            );

            // Sums over the children of each parent, and over the parents of each symbol.
            let (gates, carried_gradients, child_count) = (&gates, &*carried_gradients, level.symbols.len());
            let mut parent_gates = vec![F::ZERO; recurrent_gates.len()];
            par_for(parts_mut(&mut parent_gates, 4 * r), |parent, out| {
                F::add_rows(out, &gates[parent * child_count * 4 * r..][..child_count * 4 * r]);
            });
            par_for(
                parts_mut(&mut symbol_gradients[element_range(&level.symbols, 4 * r)], 4 * r),
                |symbol, out| {
                    gates.chunks_exact(4 * r).skip(symbol).step_by(child_count).for_each(|row| add(out, row));
                },
            );
            let layer = cell.recurrent_layer();
            layer.backward_parameters(
                &[(parent_outputs, &parent_gates)],
                &mut recurrent_gradient,
                &mut bias_gradient,
            );
            if let Some(parents) = parents {
                par_for(parts_mut(&mut earlier_gradients[element_range(&parents, r)], r), |parent, out| {
                    F::add_rows(out, &carried_gradients[parent * child_count * r..][..child_count * r]);
                });
                layer.backward_rows(
                    &parent_gates,
                    &mut output_gradients[element_range(&parents, r)],
                    Accumulate::Add,
                );
            }
        }
        // Gradients of the input kernel and of the label embeddings.
        let layer = Affine::new(View::new(&cell.input_kernel, re, 4 * r), None);
        let (mut input_gradient, mut unused_bias) =
            (vec![F::ZERO; cell.input_kernel.len()], vec![F::ZERO; 4 * r]);
        layer.backward_parameters(
            &[(self.embedding, &symbol_gradients)],
            &mut input_gradient,
            &mut unused_bias,
        );
        let mut embedding_gradient = vec![F::ZERO; self.embedding.len()];
        layer.backward_rows(&symbol_gradients, &mut embedding_gradient, Accumulate::Replace);

        let mut parameters = Parameters::from([(EMBEDDING_NAME.to_owned(), embedding_gradient)]);
        for gate in 0..4 {
            let gate_columns = |matrix: &[F]| {
                matrix.chunks_exact(4 * r).flat_map(|row| row[gate * r..][..r].to_vec()).collect()
            };
            parameters.insert(parameter_name('i', gate, "kernel"), gate_columns(&input_gradient));
            parameters.insert(parameter_name('h', gate, "kernel"), gate_columns(&recurrent_gradient));
            parameters.insert(parameter_name('h', gate, "bias"), gate_columns(&bias_gradient));
        }
        parameters
    }
}

impl HistoryLevel {
    /// Returns the parent and symbol of a row; both rows count within their levels.
    fn parent_and_symbol(&self, row: usize) -> (usize, usize) {
        let children = self.symbols.len();
        (row / children, self.symbols.start + row % children)
    }
}

/// Elements of the rows of a range of states.
fn element_range(states: &Range<usize>, width: usize) -> Range<usize> {
    states.start * width..states.end * width
}

/// LSTM states of all context states.
struct LstmStates<F> {
    /// `h`, *C x R*
    outputs: Vec<F>,
    /// `c`, *C x R*
    cells: Vec<F>,
    /// `h` and `c` before the start symbol: zeros, *R*.
    initial_state: Vec<F>,
}

impl<F> LstmStates<F> {
    /// Returns `h` and `c` of parents, or the initial state.
    fn parent_states(&self, parents: &Option<Range<usize>>, r: usize) -> [&[F]; 2] {
        match parents {
            None => [&self.initial_state, &self.initial_state],
            Some(parents) => {
                [&self.outputs[element_range(parents, r)], &self.cells[element_range(parents, r)]]
            }
        }
    }
}

/// Parameters of the LSTM cell; kernels have the columns of four gates.
struct LstmCell<F> {
    /// `K_i` *RE x 4R*
    input_kernel: Vec<F>,
    /// `K_h` *R x 4R*
    recurrent_kernel: Vec<F>,
    /// *4R*
    bias: Vec<F>,
    /// `X` *(V + 1) x 4R*
    symbol_gates: Vec<F>,
}

impl<F: Real> LstmCell<F> {
    fn new(rnn: &SharedRnn<F>) -> Self {
        let r = rnn.width();
        let concatenate = |kernels: [&[F]; 4]| -> Vec<F> {
            let rows =
                (0..kernels[0].len() / r).flat_map(|row| kernels.map(|kernel| &kernel[row * r..][..r]));
            rows.flatten().copied().collect()
        };
        let input_kernel = concatenate(rnn.input);
        let mut symbol_gates = vec![F::ZERO; (rnn.vocabulary + 1) * 4 * r];
        let layer = Affine::new(View::new(&input_kernel, rnn.embedding_width(), 4 * r), None);
        layer.forward(rnn.embedding, &mut symbol_gates);
        let recurrent_kernel = concatenate(rnn.recurrent);
        Self { input_kernel, recurrent_kernel, bias: concatenate(rnn.bias), symbol_gates }
    }

    /// The layer `h K_h + bias`.
    fn recurrent_layer(&self) -> Affine<'_, F> {
        let gates_width = self.bias.len();
        Affine::new(View::new(&self.recurrent_kernel, gates_width / 4, gates_width), Some(&self.bias))
    }

    /// Computes `G` of parents.
    fn recurrent_gates(&self, outputs: &[F]) -> Vec<F> {
        let mut out = kernels::alloc(4 * outputs.len(), F::ZERO);
        self.recurrent_layer().forward(outputs, &mut out);
        out
    }

    /// Computes i, f, g, o of one state in `gates`; `recurrent_gates` is `G` of its level.
    fn gates<'g>(
        &self,
        recurrent_gates: &[F],
        parent: usize,
        symbol: usize,
        gates: &'g mut [F],
    ) -> [&'g mut [F]; 4] {
        let gates_width = self.bias.len();
        gates.copy_from_slice(&recurrent_gates[parent * gates_width..][..gates_width]);
        add(gates, &self.symbol_gates[symbol * gates_width..][..gates_width]);
        let (input_and_forget, cell_and_output) = gates.split_at_mut(gates_width / 2);
        let (g, o) = cell_and_output.split_at_mut(gates_width / 4);
        sigmoid(input_and_forget);
        tanh(g);
        sigmoid(o);
        let (i, f) = input_and_forget.split_at_mut(gates_width / 4);
        [i, f, g, o]
    }
}

/// Replaces gates by `da`; `dc` comes from the children and becomes that of the parent.
fn gate_gradients<F: Real>(
    [i, f, g, o]: [&mut [F]; 4],
    dh: &[F],
    tanh_c: &[F],
    parent_cell: &[F],
    dc: &mut [F],
) {
    for k in 0..dc.len() {
        let cell_gradient = dc[k] + dh[k] * o[k] * (F::ONE - tanh_c[k] * tanh_c[k]);
        dc[k] = cell_gradient * f[k];
        o[k] = dh[k] * tanh_c[k] * o[k] * (F::ONE - o[k]);
        f[k] = cell_gradient * parent_cell[k] * f[k] * (F::ONE - f[k]);
        let input_gate = i[k];
        i[k] = cell_gradient * g[k] * input_gate * (F::ONE - input_gate);
        g[k] = cell_gradient * input_gate * (F::ONE - g[k] * g[k]);
    }
}
