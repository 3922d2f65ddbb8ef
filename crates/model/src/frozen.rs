//! `FrozenParameters`: the parameters of a model that training does not change.
use std::sync::Arc;

use crate::ModelConfig;
use crate::config::covers;

/// Last parts of the names of constant parameters: the statistics of a batch norm.
const CONSTANT_NAMES: [&str; 2] = ["running_mean", "running_var"];
/// Last parts of the names of an adapter's parameters.
pub(crate) const ADAPTER_NAMES: [&str; 2] = ["lora_a", "lora_b"];
/// The module whose parameters an adapter freezes, except its own.
const ADAPTED_MODULE: &str = "encoder";

/// The parameters that training does not change.
///
/// | parameter | frozen |
/// |---|---|
/// | statistics of a batch norm | always |
/// | `lora_a`, `lora_b` of an adapter | never |
/// | others of the encoder | with an adapter, or if `init.frozen` covers them |
/// | others | if `init.frozen` covers them |
#[derive(Debug, Clone, Default)]
pub(crate) struct FrozenParameters {
    /// Names of parameters or modules, as a recipe's `init.frozen`.
    names: Arc<[String]>,
    has_adapter: bool,
}

impl FrozenParameters {
    /// Returns the frozen parameters of a model.
    pub(crate) fn from_config(config: &ModelConfig) -> Self {
        FrozenParameters { names: config.frozen.as_slice().into(), has_adapter: config.adapter.is_some() }
    }

    /// Returns the names of `init.frozen`.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns true if training does not change a parameter.
    pub(crate) fn contains(&self, name: &str) -> bool {
        let is_adapted = self.has_adapter && covers(ADAPTED_MODULE, name);
        let is_covered = || is_adapted || self.names.iter().any(|frozen| covers(frozen, name));
        is_constant(name) || (!(self.has_adapter && is_adapter_parameter(name)) && is_covered())
    }
}

/// Returns true for a parameter that training does not change.
///
/// Its name ends with `running_mean` or `running_var`, as the statistics of a batch norm do.
pub(crate) fn is_constant(name: &str) -> bool {
    CONSTANT_NAMES.contains(&name.rsplit('.').next().unwrap_or(name))
}

/// Returns true for a parameter of an adapter.
pub(crate) fn is_adapter_parameter(name: &str) -> bool {
    ADAPTER_NAMES.contains(&name.rsplit('.').next().unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_freezes_the_other_parameters_of_the_encoder() {
        let names: Arc<[String]> = ["joint.head".to_owned()].into();
        let frozen = |has_adapter| FrozenParameters { names: names.clone(), has_adapter };
        for (name, without_adapter, with_adapter) in [
            ("encoder.layers.0.self_attn.linear_q.lora_a", false, false),
            ("encoder.layers.0.self_attn.linear_q.lora_b", false, false),
            ("encoder.layers.0.self_attn.linear_q.weight", false, true),
            ("encoder.layers.0.conv.batch_norm.running_mean", true, true),
            ("joint.encoder.weight", false, false),
            ("joint.head.weight", true, true),
        ] {
            assert_eq!(frozen(false).contains(name), without_adapter, "{name}");
            assert_eq!(frozen(true).contains(name), with_adapter, "{name}");
        }
    }
}
