//! Parses the command line; error messages quote the arguments, escaped and shortened.
use std::any::TypeId;
use std::error::Error;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use kernels::Excerpt;
use model::config::LossBudget;
use speech::Channel;

use crate::{Args, printing};

/// Exit status for invalid arguments.
const USAGE_ERROR: i32 = 2;

/// Parses the arguments of this process; exits on `--help` and on errors.
pub(crate) fn parse() -> Args {
    let matches = command().try_get_matches();
    let arguments = matches.and_then(|mut matches| Args::from_arg_matches_mut(&mut matches));
    arguments.unwrap_or_else(|error| match value_error_message(&error) {
        Some(message) => {
            printing::warnln!("error: {message}");
            std::process::exit(USAGE_ERROR)
        }
        None => with_escaped_arguments(error).exit(),
    })
}

/// Returns the commands of the program.
///
/// Numeric arguments accept a leading hyphen, so that an error is about the value and not about an
/// unknown flag.
fn command() -> Command {
    allow_negative_numbers(Args::command())
}

fn allow_negative_numbers(command: Command) -> Command {
    let allow = |arg: Arg| if is_numeric(&arg) { arg.allow_hyphen_values(true) } else { arg };
    command.mut_args(allow).mut_subcommands(allow_negative_numbers)
}

/// Returns true if the value of an argument is a number.
fn is_numeric(arg: &Arg) -> bool {
    let value = arg.get_value_parser().type_id();
    let numbers = [TypeId::of::<f32>(), TypeId::of::<f64>(), TypeId::of::<u32>(), TypeId::of::<u64>()];
    let sizes = [TypeId::of::<usize>(), TypeId::of::<LossBudget>(), TypeId::of::<Channel>()];
    arg.get_action().takes_values() && numbers.iter().chain(&sizes).any(|number| value == *number)
}

/// Formats an error of a value parser of this program: `--flag: expected ..., found ...`.
///
/// Returns none for clap's own errors.
fn value_error_message(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    };
    let flag =
        text(ContextKind::InvalidArg)?.split_whitespace().next().filter(|name| name.starts_with('-'))?;
    let expected = error.source()?.to_string();
    if error.kind() != ErrorKind::ValueValidation || !expected.starts_with("expected ") {
        return None;
    }
    let suffix = match text(ContextKind::InvalidValue)?.as_str() {
        _ if expected.contains(", found ") => String::new(),
        "" => ", found nothing".to_owned(),
        value => format!(", found {}", Excerpt(value)),
    };
    Some(format!("{flag}: {expected}{suffix}"))
}

/// Escapes and shortens the arguments that an error quotes.
fn with_escaped_arguments(mut error: clap::Error) -> clap::Error {
    let context: Vec<(ContextKind, ContextValue)> =
        error.context().map(|(kind, value)| (kind, value.clone())).collect();
    for (kind, value) in context {
        let value = match value {
            ContextValue::String(text) => ContextValue::String(Excerpt(text).to_string()),
            ContextValue::Strings(texts) => {
                ContextValue::Strings(texts.iter().map(|text| Excerpt(text).to_string()).collect())
            }
            // Suggestions quote arguments. The usage has several lines and quotes nothing.
            ContextValue::StyledStrs(texts) => {
                ContextValue::StyledStrs(texts.iter().map(|text| Excerpt(text).to_string().into()).collect())
            }
            _ => continue,
        };
        error.insert(kind, value);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that are valid for some numeric flags, and those flags.
    const VALID_VALUES: [(&str, &[&str]); 1] = [(
        "-1",
        &[
            "--blank-penalty",
            "--internal-lm",
            "--lm-weight",
            "--minus-lm-weight",
            "--phrase-score",
            "--unknown-character",
            "--word-bonus",
        ],
    )];

    /// Appends every argument of every command with the names of the command.
    fn collect_arguments(command: &Command, path: &[String], all_arguments: &mut Vec<(Vec<String>, Arg)>) {
        let path = [path, &[command.get_name().to_owned()]].concat();
        all_arguments.extend(command.get_arguments().map(|arg| (path.clone(), arg.clone())));
        command.get_subcommands().for_each(|inner| collect_arguments(inner, &path, all_arguments));
    }

    #[test]
    fn invalid_numbers_are_reported_with_the_name_of_the_flag() {
        let mut all_arguments = Vec::new();
        collect_arguments(&command(), &[], &mut all_arguments);
        all_arguments.retain(|(_, arg)| is_numeric(arg));
        assert!(all_arguments.len() > 60, "{}", all_arguments.len());
        for (path, arg) in all_arguments {
            let flag = format!("--{}", arg.get_long().expect("numbers have flags"));
            for value in ["nan", "inf", "-inf", "-1", "1e400", "-1e400", "1e39", "-0x1", "1,5", "x", " 1", ""]
            {
                let words = path.iter().chain([&flag]).map(String::as_str).chain([value]);
                let error = command().try_get_matches_from(words).err();
                let message = error.as_ref().and_then(value_error_message);
                let is_valid = VALID_VALUES
                    .iter()
                    .any(|(valid, flags)| *valid == value && flags.contains(&flag.as_str()));
                match message {
                    Some(message) => {
                        assert!(!is_valid, "{message}");
                        assert!(message.starts_with(&format!("{flag}: expected ")), "{message}");
                        let quoted = if value.is_empty() { "nothing" } else { value };
                        assert!(message.ends_with(&format!(", found {quoted}")), "{message}");
                    }
                    None => assert!(is_valid, "{path:?} {flag} {value:?}: {error:?}"),
                }
            }
        }
    }

    /// The compiler does not compare the types of parsers and fields.
    #[test]
    fn value_parsers_have_the_types_of_their_fields() {
        let mut all_arguments = Vec::new();
        collect_arguments(&command(), &[], &mut all_arguments);
        for (path, arg) in all_arguments.iter().filter(|(_, arg)| arg.get_action().takes_values()) {
            let Some(flag) = arg.get_long() else { continue };
            let same_command = |other: &&(Vec<String>, Arg)| other.0 == *path;
            let required = |arg: &Arg| arg.is_required_set() && arg.get_long() != Some(flag);
            let mut words = path.clone();
            for (_, other) in all_arguments.iter().filter(same_command).filter(|(_, other)| required(other)) {
                words.extend(other.get_long().map(|name| format!("--{name}")));
                words.push("name".to_owned());
            }
            let mut is_accepted = false;
            for value in ["1", "2", "1/2", "min", "max-prob", "txt", "words", "maes", "bf16", "full", "nemo"]
            {
                let words = words.iter().cloned().chain([format!("--{flag}"), value.to_owned()]);
                let is_invalid = |error: clap::Error| error.kind() == ErrorKind::ValueValidation;
                if command().try_get_matches_from(words.clone()).is_err_and(is_invalid) {
                    continue;
                }
                // Ignore other flags that the flag requires.
                let matches = command().ignore_errors(true).try_get_matches_from(words).unwrap();
                let arguments = Args::from_arg_matches(&matches).map(drop);
                assert!(arguments.is_ok(), "{path:?} {flag} {value}: {arguments:?}");
                is_accepted = true;
            }
            assert!(is_accepted, "{path:?} {flag}");
        }
    }

    #[test]
    fn quoted_arguments_are_escaped_and_shortened() {
        let long = "x".repeat(100_000);
        for value in [long.as_str(), "a\nerror: forged \u{1b}[2J\u{9b}\u{202e}"] {
            for words in [
                &["panda", value][..],
                &["panda", "train", &format!("--{value}"), "x.toml"],
                &["panda", "train", "x.toml", value],
                &["panda", "evaluate", "x", "y", "--beam", value],
                &["panda", "evaluate", "x", "y", "--shard", value],
                &["panda", "evaluate", "x", "y", "--confidence", value],
                &["panda", "evaluate", "x", "y", "--format", value],
                &["panda", "evaluate", "x", "y", "--beam-search", value],
            ] {
                let error = command().try_get_matches_from(words).unwrap_err();
                let message =
                    value_error_message(&error).unwrap_or_else(|| with_escaped_arguments(error).to_string());
                assert!(message.len() < 1500, "{}", &message[..1500]);
                let is_unescaped = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
                assert!(!message.contains(is_unescaped) && !message.contains("\nerror: forged"), "{message}");
            }
        }
    }
}
