//! What a session holds between the two directions of a whole batch.
use std::borrow::Cow;

use ::pruned::FirstPass;
use kernels::Real;

use crate::{
    Found, Inputs, Output, Result, Session, Targets,
    call::Call,
    engine::Forward,
    first_pass::{pull_back, retained},
    pruned::{BothPlans, plan, scaled, second_loss},
    scores,
    session::reject_pruned,
};

/// The forward pass of some inputs, which are asked for again in the other direction.
pub struct Held<F> {
    forward: Forward<F>,
    pruned: Option<FirstHalf<F>>,
}

/// The first pass of pruned training, and what it left of the lattices.
struct FirstHalf<F> {
    pass: FirstPass<F>,
    found: Found,
    retained: Targets,
}

impl<F: Real> Held<F> {
    pub fn new(session: &mut Session<F>, inputs: &Inputs<F>, targets: &Targets) -> Result<Self> {
        let loss = session.options.loss.clone();
        let mut pruned = None;
        let forward = match inputs {
            Inputs::Joint(joint) => {
                reject_pruned(&loss)?;
                session.whole(&Call::joint(joint, &loss, targets, &session.options)?, 0)?
            }
            Inputs::Rows(rows) => {
                reject_pruned(&loss)?;
                let call = Call::rows(rows, &loss, targets, &session.options)?;
                session.whole(&call, 0).map_err(|error| error.of(&loss))?
            }
            Inputs::Scores(scores) => scores::forward(session, scores, targets)?,
            Inputs::Pruned(inputs) => {
                let BothPlans { question, first, .. } = plan(&session.options, inputs, targets, true)?;
                let (pass, found) = question.ask(&inputs.simple, &first)?;
                let retained = retained(targets, &found.ranges)?;
                let second = second_loss(&loss);
                let call = Call::joint(&inputs.joint, &second, &retained, &session.options)?;
                let forward = session.whole(&call, first.bytes)?;
                pruned = Some(FirstHalf { pass, found, retained });
                forward
            }
        };
        Ok(Self { forward, pruned })
    }

    pub fn losses(&self) -> &[f64] {
        self.forward.losses()
    }

    pub fn found(&self) -> Option<&Found> {
        self.pruned.as_ref().map(|pruned| &pruned.found)
    }

    pub fn emissions(&self) -> Cow<'_, [f64]> {
        self.forward.emissions()
    }

    pub fn adjoints(&self) -> &[f64] {
        self.forward.adjoints()
    }

    /// The other direction, of the same session, inputs and targets.
    pub fn backward(
        self,
        session: &mut Session<F>,
        inputs: &Inputs<F>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Output<F>> {
        let loss = session.options.loss.clone();
        match (inputs, self.pruned) {
            (Inputs::Joint(joint), _) => {
                let call = Call::joint(joint, &loss, targets, &session.options)?;
                session.whole_backward(&call, self.forward, weights)
            }
            (Inputs::Rows(rows), _) => {
                let call = Call::rows(rows, &loss, targets, &session.options)?;
                session.whole_backward(&call, self.forward, weights).map_err(|error| error.of(&loss))
            }
            (Inputs::Scores(inputs), _) => scores::backward(session, inputs, targets, self.forward, weights),
            (Inputs::Pruned(inputs), Some(FirstHalf { pass, found, retained })) => {
                let second = second_loss(&loss);
                let call = Call::joint(&inputs.joint, &second, &retained, &session.options)?;
                let of_second = scaled(weights, inputs.scales.pruned);
                let mut out = session.whole_backward(&call, self.forward, &of_second)?;
                let of_first = scaled(weights, inputs.scales.simple);
                out.gradients.simple = Some(pull_back(&pass, &inputs.simple, &of_first)?);
                out.first_pass = Some(found);
                Ok(out)
            }
            (Inputs::Pruned(_), None) => unreachable!("a first pass came before the second"),
        }
    }
}

impl<F: Real> Session<F> {
    /// Forward of all utterances at once.
    fn whole(&mut self, call: &Call<F>, held: usize) -> Result<Forward<F>> {
        let plan = call.sizes(&self.options, held).whole::<F>()?;
        let (sites, heads) = (call.sites(0..call.objective.sites().batch())?, call.heads.list()?);
        self.keep_to(&plan, heads.len())?;
        Forward::new(&sites, &heads, &call.objective, self)
    }

    /// Backward of all utterances at once.
    fn whole_backward(&mut self, call: &Call<F>, forward: Forward<F>, weights: &[f64]) -> Result<Output<F>> {
        let (sites, mut into) = (call.sites(0..call.objective.sites().batch())?, call.zero()?);
        let (heads, lattices) = (call.heads.list()?, call.objective.sites().lattices());
        let (losses, skipped) = forward.backward(&sites, &heads, lattices, weights, self, &mut into)?;
        Ok(Output { losses, first_pass: None, gradients: call.name(into), skipped })
    }
}
