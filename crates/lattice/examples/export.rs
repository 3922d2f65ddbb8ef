//! Exports a tiny lattice: as a graph for Graphviz, or as text for OpenFst.
//!
//! ```text
//! cargo run -p lattice --example export > lattice.dot && dot -Tsvg lattice.dot > lattice.svg
//! cargo run -p lattice --example export openfst
//! ```
use lattice::{
    AlignmentLattice, Context, Frames, FullNGram, LatticeSession, RecognitionLattice, Result, TableWeightFn,
};

const NAMES: [&str; 2] = ["yes", "no"];

fn main() -> Result<()> {
    // Three frames; the context is the previous label: 3 states, each with a blank and two labels.
    let context = FullNGram::new(2, 1)?;
    let weights: Vec<f64> = (0..27).map(|i| f64::from(i * 7 % 11) / 4.0 - 1.0).collect();
    let table = TableWeightFn::new(&weights, &[3, context.states(), 3])?;
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::frame_label_dependent(1)?, &table)?;
    let frames = Frames::new(&[0.0, 1.0, 2.0], &[1, 3, 1], &[3])?;

    let arcs = lattice.arc_list(&frames, 0, 1000)?;
    if std::env::args().nth(1).as_deref() == Some("openfst") {
        let text = arcs.to_openfst(Some(&NAMES))?;
        print!("{}\n# inputs\n{}\n# outputs\n{}", text.arcs, text.inputs, text.outputs);
        return Ok(());
    }
    let best = LatticeSession::default().best_paths(&lattice, &frames)?;
    let history = |state| context.history(state).iter().map(|&label| NAMES[label - 1]).collect::<String>();
    print!("{}", arcs.to_dot(Some(&NAMES), history, best.first())?);
    Ok(())
}
