//! What a session holds between the two directions of a whole batch.
use std::borrow::Cow;

use ::pruned::FirstPass;
use panda_core::Real;

use crate::{
    Found, Inputs, Output, Result, Session, Targets,
    between::Between,
    call::Call,
    first_pass::{pull_back, retained},
    pruned::{BothPlans, plan, scaled, second_loss},
    scores,
    session::reject_pruned,
};

/// The forward pass of some inputs, which are asked for again in the other direction.
pub struct Held<F> {
    between: Between<F>,
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
        let between = match inputs {
            Inputs::Joint(joint) => {
                reject_pruned(&loss)?;
                Call::joint(joint, &loss, targets, &session.options)?.forward(session, 0)?
            }
            Inputs::Rows(rows) => {
                reject_pruned(&loss)?;
                let call = Call::rows(rows, &loss, targets, &session.options)?;
                call.forward(session, 0).map_err(|error| error.of(&loss))?
            }
            Inputs::Scores(scores) => scores::forward(session, scores, targets)?,
            Inputs::Pruned(inputs) => {
                let plans = plan(&session.options, inputs, targets, true)?;
                plans.keep(session)?;
                let BothPlans { question, first, .. } = plans;
                let (pass, found) = question.ask(&inputs.simple, &first, &mut session.first)?;
                let retained = retained(targets, &found.ranges)?;
                let second = second_loss(&loss);
                let call = Call::joint(&inputs.joint, &second, &retained, &session.options)?;
                let between = call.forward(session, first.bytes)?;
                pruned = Some(FirstHalf { pass, found, retained });
                between
            }
        };
        Ok(Self { between, pruned })
    }

    pub fn losses(&self) -> &[f64] {
        self.between.losses()
    }

    pub fn found(&self) -> Option<&Found> {
        self.pruned.as_ref().map(|pruned| &pruned.found)
    }

    pub fn emissions(&self) -> Cow<'_, [f64]> {
        self.between.emissions()
    }

    pub fn adjoints(&self) -> &[f64] {
        self.between.adjoints()
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
                call.backward(session, self.between, weights)
            }
            (Inputs::Rows(rows), _) => {
                let call = Call::rows(rows, &loss, targets, &session.options)?;
                call.backward(session, self.between, weights).map_err(|error| error.of(&loss))
            }
            (Inputs::Scores(inputs), _) => scores::backward(session, inputs, targets, self.between, weights),
            (Inputs::Pruned(inputs), Some(FirstHalf { pass, found, retained })) => {
                let second = second_loss(&loss);
                let call = Call::joint(&inputs.joint, &second, &retained, &session.options)?;
                let of_second = scaled(weights, inputs.scales.pruned);
                let mut out = call.backward(session, self.between, &of_second)?;
                let of_first = scaled(weights, inputs.scales.simple);
                out.gradients.simple = Some(pull_back(pass, &inputs.simple, &of_first, &mut session.first)?);
                out.first_pass = Some(found);
                Ok(out)
            }
            (Inputs::Pruned(_), None) => unreachable!("a first pass came before the second"),
        }
    }
}
