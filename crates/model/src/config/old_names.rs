//! Old names of recipe keys and values, from earlier versions.
//!
//! Recipes in checkpoints and run folders are translated to the new names ([`translate`]). A recipe
//! file with an old name is an error that contains the new one ([`reject`]).
use std::borrow::Cow;

use toml::{Table, Value};

use crate::{Error, Result};

/// Old dotted keys, and the new last part of each.
const RENAMED_KEYS: [(&str, &str); 6] = [
    ("optimiser", "optimizer"),
    ("loss.normalise", "normalize"),
    ("features.normalise", "normalize"),
    ("augment.speed.share", "probability"),
    ("augment.reverb.share", "probability"),
    ("augment.noise.share", "probability"),
];

/// Dotted keys, each with an old and a new value.
const RENAMED_VALUES: [(&str, &str, &str); 1] = [("features.framing", "centred", "centered")];

/// Replaces old names in the recipe of a checkpoint or run folder.
///
/// If a table has an old and a new name of the same key, it keeps the value of the new one. A
/// recipe without old names, or with invalid TOML, is returned unchanged.
pub fn translate(text: &str) -> Cow<'_, str> {
    let Ok(mut recipe) = text.parse::<Table>() else { return text.into() };
    if replace_old_names(&mut recipe).is_empty() {
        return text.into();
    }
    toml::to_string(&recipe).map_or(text.into(), Cow::Owned)
}

/// Fails if the text of a recipe file contains an old name.
///
/// Invalid TOML is accepted here: the parser that runs next reports it.
///
/// # Errors
/// [`Error::RecipeValue`] for the first old name, with the new one.
pub fn reject(text: &str) -> Result<()> {
    let Ok(mut recipe) = text.parse::<Table>() else { return Ok(()) };
    replace_old_names(&mut recipe).into_iter().next().map_or(Ok(()), Err)
}

/// Replaces the old names in a recipe; returns an error for each old name.
fn replace_old_names(recipe: &mut Table) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut add_error = |key: &str, old: &str, new: &str| {
        let [expected, found] =
            [("new", new), ("old", old)].map(|(age, name)| format!("the {age} name {name}"));
        errors.push(Error::RecipeValue { key: key.to_owned(), expected, found });
    };
    for (key, new) in RENAMED_KEYS {
        let Some((table, old)) = find_table(recipe, key) else { continue };
        if let Some(value) = table.remove(old) {
            // A value under the new name has priority.
            table.entry(new).or_insert(value);
            add_error(key, old, new);
        }
    }
    for (key, old, new) in RENAMED_VALUES {
        let Some((table, name)) = find_table(recipe, key) else { continue };
        let value = table.get_mut(name).filter(|value| value.as_str() == Some(old));
        if let Some(value) = value {
            *value = Value::String(new.to_owned());
            add_error(key, &format!("{old:?}"), &format!("{new:?}"));
        }
    }
    errors
}

/// Returns the table of a dotted key, and the key's last part.
fn find_table<'a, 'b>(recipe: &'a mut Table, key: &'b str) -> Option<(&'a mut Table, &'b str)> {
    let (tables, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut names = tables.split('.').filter(|name| !name.is_empty());
    let table = names.try_fold(recipe, |table, name| table.get_mut(name)?.as_table_mut())?;
    Some((table, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a recipe with one key in its table.
    fn recipe_with_value(key: &str, value: &str) -> String {
        match key.rsplit_once('.') {
            Some((table, name)) => format!("seed = 1 # comment\n[{table}]\n{name} = {value}\nother = 1\n"),
            None => format!("seed = 1 # comment\n[{key}]\nother = {value}\n"),
        }
    }

    /// Checks the translation of an old recipe, and its error.
    fn expect_renamed(old_recipe: &str, new_recipe: &str, key: &str, old_name: &str, new_name: &str) {
        assert!(
            matches!(translate(new_recipe), Cow::Borrowed(_)) && reject(new_recipe).is_ok(),
            "{new_recipe}"
        );
        assert_eq!(translate(old_recipe).parse::<Table>().unwrap(), new_recipe.parse::<Table>().unwrap());
        let message =
            format!("recipe key {key}: expected the new name {new_name}, found the old name {old_name}");
        assert_eq!(reject(old_recipe).unwrap_err().to_string(), message);
    }

    #[test]
    fn every_old_key_is_an_error_with_the_new_key_and_can_be_translated() {
        for (key, new) in RENAMED_KEYS {
            let old_name = key.rsplit('.').next().unwrap();
            let new_key = format!("{}{new}", key.strip_suffix(old_name).unwrap());
            expect_renamed(
                &recipe_with_value(key, "2"),
                &recipe_with_value(&new_key, "2"),
                key,
                old_name,
                new,
            );
        }
    }

    #[test]
    fn every_old_value_is_an_error_with_the_new_value_and_can_be_translated() {
        for (key, old, new) in RENAMED_VALUES {
            let [old, new] = [old, new].map(|name| format!("{name:?}"));
            expect_renamed(&recipe_with_value(key, &old), &recipe_with_value(key, &new), key, &old, &new);
        }
    }

    #[test]
    fn a_recipe_with_old_and_new_name_is_an_error_and_keeps_the_new_value() {
        let text = "[optimiser]\neps = 1\n[optimizer]\neps = 2\n";
        assert!(reject(text).is_err());
        assert_eq!(
            translate(text).parse::<Table>().unwrap(),
            "[optimizer]\neps = 2".parse::<Table>().unwrap()
        );
    }

    #[test]
    fn invalid_text_is_unchanged() {
        assert_eq!(translate("[optimiser"), "[optimiser");
        assert!(reject("[optimiser").is_ok() && reject("optimizer = 3").is_ok());
    }
}
