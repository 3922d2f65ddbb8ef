//! The command line, whose errors quote what was typed.
use std::any::TypeId;
use std::error::Error;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use kernels::Excerpt;
use model::config::LossBudget;
use speech::Channel;

use crate::{Args, out};

/// Exit status for arguments that are refused.
const REFUSED: i32 = 2;

/// Parses the arguments of this process, or ends it with help or a message.
pub fn parse() -> Args {
    let matches = command().try_get_matches();
    let arguments = matches.and_then(|mut matches| Args::from_arg_matches_mut(&mut matches));
    arguments.unwrap_or_else(|error| match value_message(&error) {
        Some(message) => {
            out::warnln!("error: {message}");
            std::process::exit(REFUSED)
        }
        None => printable(error).exit(),
    })
}

/// The program's commands. A number may be negative, so that an error is about the value and not about an unknown flag.
fn command() -> Command {
    allow_negative_numbers(Args::command())
}

fn allow_negative_numbers(command: Command) -> Command {
    let allow = |arg: Arg| if is_numeric(&arg) { arg.allow_hyphen_values(true) } else { arg };
    command.mut_args(allow).mut_subcommands(allow_negative_numbers)
}

/// Whether the value of an argument is a number.
fn is_numeric(arg: &Arg) -> bool {
    let value = arg.get_value_parser().type_id();
    let numbers = [TypeId::of::<f32>(), TypeId::of::<f64>(), TypeId::of::<u32>(), TypeId::of::<u64>()];
    let sizes = [TypeId::of::<usize>(), TypeId::of::<LossBudget>(), TypeId::of::<Channel>()];
    arg.get_action().takes_values() && numbers.iter().chain(&sizes).any(|number| value == *number)
}

/// The message of this program's own parsers: `--flag: expected ..., found ...`.
fn value_message(error: &clap::Error) -> Option<String> {
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
    let found = match text(ContextKind::InvalidValue)?.as_str() {
        _ if expected.contains(", found ") => String::new(),
        "" => ", found nothing".to_owned(),
        value => format!(", found {}", Excerpt(value)),
    };
    Some(format!("{flag}: {expected}{found}"))
}

/// An error whose quotations of arguments are escaped and cut.
fn printable(mut error: clap::Error) -> clap::Error {
    let context: Vec<(ContextKind, ContextValue)> =
        error.context().map(|(kind, value)| (kind, value.clone())).collect();
    for (kind, value) in context {
        let value = match value {
            ContextValue::String(text) => ContextValue::String(Excerpt(text).to_string()),
            ContextValue::Strings(texts) => {
                ContextValue::Strings(texts.iter().map(|text| Excerpt(text).to_string()).collect())
            }
            // Proposals quote what was typed; the usage has lines of its own and no quotations.
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

    /// Values that make sense for some flags, and those flags.
    const PERMITTED: [(&str, &[&str]); 1] = [(
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

    /// Every argument of every command with the names of the command.
    fn arguments(command: &Command, path: &[String], found: &mut Vec<(Vec<String>, Arg)>) {
        let path = [path, &[command.get_name().to_owned()]].concat();
        found.extend(command.get_arguments().map(|arg| (path.clone(), arg.clone())));
        command.get_subcommands().for_each(|inner| arguments(inner, &path, found));
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_with_the_name_of_the_flag() {
        let mut all = Vec::new();
        arguments(&command(), &[], &mut all);
        all.retain(|(_, arg)| is_numeric(arg));
        assert!(all.len() > 60, "{}", all.len());
        for (path, arg) in all {
            let flag = format!("--{}", arg.get_long().expect("numbers have flags"));
            for value in ["nan", "inf", "-inf", "-1", "1e400", "-1e400", "1e39", "-0x1", "1,5", "x", " 1", ""]
            {
                let words = path.iter().chain([&flag]).map(String::as_str).chain([value]);
                let error = command().try_get_matches_from(words).err();
                let refused = error.as_ref().and_then(value_message);
                let is_permitted =
                    PERMITTED.iter().any(|(one, flags)| *one == value && flags.contains(&flag.as_str()));
                match refused {
                    Some(message) => {
                        assert!(!is_permitted, "{message}");
                        assert!(message.starts_with(&format!("{flag}: expected ")), "{message}");
                        let found = if value.is_empty() { "nothing" } else { value };
                        assert!(message.ends_with(&format!(", found {found}")), "{message}");
                    }
                    None => assert!(is_permitted, "{path:?} {flag} {value:?}: {error:?}"),
                }
            }
        }
    }

    /// Parsers have no types that the compiler could compare with those of the fields.
    #[test]
    fn parsers_of_numbers_have_the_types_of_their_fields() {
        let mut all = Vec::new();
        arguments(&command(), &[], &mut all);
        for (path, arg) in all.iter().filter(|(_, arg)| arg.get_action().takes_values()) {
            let Some(flag) = arg.get_long() else { continue };
            let of_command = |other: &&(Vec<String>, Arg)| other.0 == *path;
            let required = |arg: &Arg| arg.is_required_set() && arg.get_long() != Some(flag);
            let mut words = path.clone();
            for (_, other) in all.iter().filter(of_command).filter(|(_, other)| required(other)) {
                words.extend(other.get_long().map(|name| format!("--{name}")));
                words.push("name".to_owned());
            }
            let mut is_accepted = false;
            for value in ["1", "2", "1/2", "min", "max-prob", "txt", "words", "maes", "bf16"] {
                let words = words.iter().cloned().chain([format!("--{flag}"), value.to_owned()]);
                let is_refused = |error: clap::Error| error.kind() == ErrorKind::ValueValidation;
                if command().try_get_matches_from(words.clone()).is_err_and(is_refused) {
                    continue;
                }
                // Requirements of the flag are no concern here.
                let matches = command().ignore_errors(true).try_get_matches_from(words).unwrap();
                let arguments = Args::from_arg_matches(&matches).map(drop);
                assert!(arguments.is_ok(), "{path:?} {flag} {value}: {arguments:?}");
                is_accepted = true;
            }
            assert!(is_accepted, "{path:?} {flag}");
        }
    }

    #[test]
    fn what_was_typed_is_escaped_and_cut() {
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
                let message = value_message(&error).unwrap_or_else(|| printable(error).to_string());
                assert!(message.len() < 1500, "{}", &message[..1500]);
                let hostile = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
                assert!(!message.contains(hostile) && !message.contains("\nerror: forged"), "{message}");
            }
        }
    }
}
