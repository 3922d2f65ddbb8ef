//! Parses YAML configurations of bounded size, without repeating aliases.
use std::path::Path;

use serde_json::Value;
use serde_saphyr::options::NonFiniteFloatPolicy;

use crate::{Error, Result};

/// Largest configuration in bytes; that of a model with a long token list has some 500 kB.
pub(crate) const MAX_CONFIGURATION_BYTES: u64 = 16 << 20;
/// Largest number of values.
const MAX_VALUES: usize = 2_000_000;
/// Largest number of values that aliases may repeat.
const MAX_REPEATED_VALUES: usize = 10_000;
/// Largest depth of tables and lists.
const MAX_DEPTH: usize = 32;

/// Parses a YAML document as JSON values.
///
/// # Errors
/// [`Error::Conversion`] for invalid YAML, and for documents above the limits.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Value> {
    let error = |expected: String, found: String| Error::conversion(path, "configuration", expected, found);
    if text.len() as u64 > MAX_CONFIGURATION_BYTES {
        return Err(error(format!("at most {MAX_CONFIGURATION_BYTES} bytes"), text.len().to_string()));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: MAX_VALUES,
            max_nodes: MAX_VALUES,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: 1,
            max_aliases: 1000,
            max_anchors: 1000,
            max_recorded_anchor_events: MAX_VALUES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPEATED_VALUES,
            max_replay_stack_depth: 8,
        },
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|source| error("YAML".to_owned(), source.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_have_the_types_of_yaml() {
        let text = "a: 1\nb: -1\nc: 1.0e-05\nd: true\ne: 'n'\nf: null\ng: NA\nh: None\ni: -.inf\nj:\n- - 6\n  - 1\nk: {}\n\
                    l: '0'\nm: ▁the\nn: \"\\u2581\"\no: .\np: ''''\nq: [-1, -1]\n";
        let expected = json!({
            "a": 1, "b": -1, "c": 1e-5, "d": true, "e": "n", "f": null, "g": "NA", "h": "None", "i": null,
            "j": [[6, 1]], "k": {}, "l": "0", "m": "▁the", "n": "▁", "o": ".", "p": "'", "q": [-1, -1],
        });
        assert_eq!(parse(Path::new("c"), text).unwrap(), expected);
    }

    #[test]
    fn aliases_are_followed_but_bombs_are_errors() {
        assert_eq!(parse(Path::new("c"), "a: &x [1]\nb: *x\n").unwrap(), json!({"a": [1], "b": [1]}));
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let alias = format!("*a{}", level - 1);
            bomb += &format!("a{level}: &a{level} [{}]\n", vec![alias; 9].join(","));
        }
        let deep = "[".repeat(10_000);
        let nested =
            (0..10_000).fold(String::new(), |text, depth| text + &" ".repeat(depth.min(500)) + "a:\n");
        for text in [&bomb, &deep, &nested, "a: 1\n---\nb: 2\n", "a: *none\n", "a: 1\na: 2\n", "a: [1\n"] {
            let error = parse(Path::new("c"), text).unwrap_err().to_string();
            assert!(error.starts_with("c: configuration: expected YAML, found "), "{error}");
        }
    }
}
