//! Rows of labels in pretrained weights, matched by their tokens.
//!
//! Heads and embeddings have a row for each label, then one for the blank and for each big blank.
//! A new model with other tokens takes the rows of the tokens that both models have; the other rows
//! keep their random values.
use std::collections::{BTreeMap, HashMap};

use crate::checkpoint::Values;
use crate::parameters::Shapes;

/// Parameters whose rows are labels; a part `*` is any number.
const LABEL_PARAMETERS: [&str; 10] = [
    "joint.head.weight",
    "joint.head.bias",
    "ctc.weight",
    "ctc.bias",
    "predictor.embedding.weight",
    "predictor.embeddings.*.weight",
    "simple.encoder.weight",
    "simple.encoder.bias",
    "simple.predictor.weight",
    "simple.predictor.bias",
];

/// A parameter's values in the file, and the rows to copy.
#[derive(Debug)]
pub(crate) struct LabelRows {
    values: Vec<f32>,
    /// `None` for a row that keeps its random values.
    file_rows: Vec<Option<usize>>,
}

impl LabelRows {
    /// Copies the rows of the file.
    pub(crate) fn copy_to(&self, values: &mut [f32]) {
        let width = values.len() / self.file_rows.len().max(1);
        for (row, file_row) in values.chunks_exact_mut(width.max(1)).zip(&self.file_rows) {
            let Some(file_row) = *file_row else { continue };
            row.copy_from_slice(&self.values[file_row * width..][..width]);
        }
    }
}

/// Takes the parameters whose rows are labels out of `values`.
///
/// Parameters with another width are left; `shapes` are then reported as different. The shapes of
/// the others become those of the model.
pub(crate) fn take_label_rows(
    [tokens, file_tokens]: [&[String]; 2],
    expected: &Shapes,
    values: &mut Values,
    shapes: &mut Shapes,
) -> BTreeMap<String, LabelRows> {
    let file_ids: HashMap<&str, usize> = file_tokens.iter().map(String::as_str).zip(0..).collect();
    let mut label_rows = BTreeMap::new();
    for (name, shape) in expected.iter().filter(|(name, _)| is_label_parameter(name)) {
        let Some(file_shape) = shapes.get_mut(name) else { continue };
        let (Some((rows, width)), Some((file_row_count, file_width))) =
            (shape.split_first(), file_shape.split_first())
        else {
            continue;
        };
        // The blanks follow the labels; embeddings may have none.
        let blanks = rows.checked_sub(tokens.len());
        let file_blanks = file_row_count.checked_sub(file_tokens.len());
        let (Some(blanks), Some(file_blanks)) = (blanks, file_blanks) else { continue };
        if width != file_width {
            continue;
        }
        let Some(values) = values.remove(name) else { continue };
        let label_row = |token: &String| file_ids.get(token.as_str()).copied();
        let blank_row = |blank: usize| (blank < file_blanks).then_some(file_tokens.len() + blank);
        let file_rows = tokens.iter().map(label_row).chain((0..blanks).map(blank_row)).collect();
        file_shape.clone_from(shape);
        label_rows.insert(name.clone(), LabelRows { values, file_rows });
    }
    label_rows
}

/// Returns true if the rows of a parameter are labels.
fn is_label_parameter(name: &str) -> bool {
    let matches = |pattern: &&str| {
        let (mut parts, mut name_parts) = (pattern.split('.'), name.split('.'));
        let is_equal = |(part, name_part): (&str, &str)| {
            part == name_part || (part == "*" && name_part.parse::<usize>().is_ok())
        };
        parts.by_ref().zip(name_parts.by_ref()).all(is_equal)
            && parts.next().is_none()
            && pattern.split('.').count() == name.split('.').count()
    };
    LABEL_PARAMETERS.iter().any(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_label_parameters_are_compared_part_by_part() {
        for (name, expected) in [
            ("joint.head.weight", true),
            ("joint.head", false),
            ("joint.head.weight.x", false),
            ("predictor.embeddings.1.weight", true),
            ("predictor.embeddings.x.weight", false),
            ("joint.encoder.weight", false),
        ] {
            assert_eq!(is_label_parameter(name), expected, "{name}");
        }
    }

    #[test]
    fn rows_of_equal_tokens_and_blanks_are_copied() {
        let tokens = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let (model_tokens, file_tokens) = (tokens("bxa"), tokens("abc"));
        let expected = Shapes::from([("joint.head.weight".to_owned(), vec![4, 2])]);
        let mut shapes = expected.clone();
        let mut values: Values =
            [("joint.head.weight".to_owned(), (0..8).map(|i| i as f32).collect())].into();
        let rows = take_label_rows([&model_tokens, &file_tokens], &expected, &mut values, &mut shapes);
        let mut head = vec![-1.0; 8];
        rows["joint.head.weight"].copy_to(&mut head);
        // b, x (random), a, blank
        assert_eq!(head, [2.0, 3.0, -1.0, -1.0, 0.0, 1.0, 6.0, 7.0]);
        assert!(values.is_empty());
        // Another number of tokens, and of blanks.
        let expected = Shapes::from([("ctc.bias".to_owned(), vec![6])]);
        let mut shapes = Shapes::from([("ctc.bias".to_owned(), vec![4])]);
        let mut values: Values = [("ctc.bias".to_owned(), vec![10.0, 11.0, 12.0, 13.0])].into();
        let model_tokens = tokens("cdea");
        let rows = take_label_rows([&model_tokens, &file_tokens], &expected, &mut values, &mut shapes);
        let mut bias = vec![0.0; 6];
        rows["ctc.bias"].copy_to(&mut bias);
        assert_eq!((bias, shapes), (vec![12.0, 0.0, 0.0, 10.0, 13.0, 0.0], expected));
    }

    #[test]
    fn other_widths_are_left_for_the_comparison_of_shapes() {
        let tokens = vec!["a".to_owned()];
        let expected = Shapes::from([("joint.head.weight".to_owned(), vec![2, 3])]);
        let mut shapes = Shapes::from([("joint.head.weight".to_owned(), vec![2, 2])]);
        let mut values: Values = [("joint.head.weight".to_owned(), vec![0.0; 4])].into();
        let rows = take_label_rows([&tokens, &tokens], &expected, &mut values, &mut shapes);
        assert!(rows.is_empty() && values.len() == 1 && shapes["joint.head.weight"] == [2, 2]);
    }
}
