//! Writes JSON values as YAML in block style.
use serde_json::Value;

/// Returns a table as YAML; texts are quoted, so that none is taken for another type.
pub(super) fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    write(value, 0, &mut text);
    text
}

/// Appends the lines of a value, with their indentation.
fn write(value: &Value, depth: usize, text: &mut String) {
    let indentation = "  ".repeat(depth);
    match value {
        Value::Object(table) if !table.is_empty() => {
            for (key, value) in table {
                *text += &format!("{indentation}{key}:");
                write_nested(value, depth, text);
            }
        }
        Value::Array(values) if !values.is_empty() => {
            for value in values {
                *text += &format!("{indentation}-");
                write_nested(value, depth, text);
            }
        }
        scalar => *text += &format!("{indentation}{scalar}\n"),
    }
}

/// Appends a value after `key:` or `-`.
fn write_nested(value: &Value, depth: usize, text: &mut String) {
    let is_empty = match value {
        Value::Object(table) => table.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => true,
    };
    if is_empty {
        // Scalars of JSON, and empty tables and lists, are YAML.
        *text += &format!(" {value}\n");
    } else {
        text.push('\n');
        write(value, depth + 1, text);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_and_lists_are_nested_by_indentation() {
        let value = json!({"a": {"b": [1, [2, 3], {"c": "n"}], "d": null}, "e": [], "f": {}, "g": "it's \"x\"", "h": -1.5e-7});
        let text = "a:\n  b:\n    - 1\n    -\n      - 2\n      - 3\n    -\n      c: \"n\"\n  d: null\ne: []\nf: {}\ng: \"it's \\\"x\\\"\"\nh: -1.5e-7\n";
        assert_eq!(to_yaml(&value), text);
    }
}
