//! `Charsmap`: the compiled replacement rules of a SentencePiece normalizer.
//!
//! The blob is a size in bytes, a double array (Aoe 1989) of that size, and the replacements,
//! separated by zero bytes. The double array is a trie over bytes; the value of a rule is the
//! position of its replacement. Units of the array, as in the library Darts-clone:
//!
//! | bits | content |
//! |---|---|
//! | 0 to 7, 31 | label: the byte that leads to this node |
//! | 8 | whether a rule ends at this node |
//! | 9, 10 to 30 | offset to the children, in steps of 256 if bit 9 is set |
//! | 0 to 30 of the first child | value, if a rule ends |

use super::protobuf::damaged;
use crate::{Error, Result};

/// Largest number of nested rules that are tried, as in SentencePiece.
const MAX_NESTED_RULES: usize = 32;
/// Labels of a block: the children of a node are in one block.
const BLOCK_UNITS: usize = 256;

/// Replacement rules; see the module.
pub(in crate::tokens) struct Charsmap {
    units: Vec<u32>,
    replacements: String,
}

impl Charsmap {
    /// Reads a blob and checks all nodes that a text can reach.
    ///
    /// Cost: O(256 · nodes) time.
    pub(in crate::tokens) fn parse(blob: &[u8]) -> Result<Self> {
        let (size, rest) = blob.split_first_chunk::<4>().ok_or_else(|| invalid("no size"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (array, replacements) = rest.split_at_checked(size).ok_or_else(|| invalid("a larger trie"))?;
        let (units, remainder) = array.as_chunks::<4>();
        if units.is_empty() || !units.len().is_multiple_of(BLOCK_UNITS) || !remainder.is_empty() {
            return Err(invalid(&format!("a trie of {size} bytes")));
        }
        let replacements = std::str::from_utf8(replacements).map_err(|_| invalid("other text than UTF-8"))?;
        let charsmap = Charsmap {
            units: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            replacements: replacements.to_owned(),
        };
        charsmap.check_nodes()?;
        Ok(charsmap)
    }

    /// Returns the longest rule that a text begins with: its length and its replacement.
    pub(super) fn longest_match(&self, text: &str) -> Option<(usize, &str)> {
        let (mut longest, mut num_matches) = (None, 0);
        let mut children = offset(*self.units.first()?);
        for (i, byte) in text.bytes().enumerate() {
            let node = children ^ usize::from(byte);
            let unit = *self.units.get(node)?;
            if label(unit) != u32::from(byte) {
                break;
            }
            children = node ^ offset(unit);
            if ends_rule(unit) {
                num_matches += 1;
                if num_matches <= MAX_NESTED_RULES && text.is_char_boundary(i + 1) {
                    longest = Some((i + 1, self.replacement(children)?));
                }
            }
        }
        longest
    }

    /// Returns the replacement of the rule whose value is in unit `index`.
    fn replacement(&self, index: usize) -> Option<&str> {
        let position = (self.units.get(index)? & !(1 << 31)) as usize;
        self.replacements.get(position..)?.split('\0').next()
    }

    /// Checks that children and replacements of all nodes exist.
    fn check_nodes(&self) -> Result<()> {
        let mut is_visited = vec![false; self.units.len()];
        let mut pending = vec![offset(self.units[0])];
        while let Some(children) = pending.pop() {
            let is_new = is_visited.get_mut(children).ok_or_else(|| invalid("a node beyond the trie"))?;
            if std::mem::replace(is_new, true) {
                continue;
            }
            // The number of units is a multiple of a block, so that all 256 children exist.
            for byte in 0..BLOCK_UNITS {
                let node = children ^ byte;
                let unit = self.units[node];
                if label(unit) != byte as u32 {
                    continue;
                }
                let next = node ^ offset(unit);
                if ends_rule(unit) && self.replacement(next).is_none() {
                    return Err(invalid("a rule without a replacement"));
                }
                pending.push(next);
            }
        }
        Ok(())
    }
}

/// Returns the error of a damaged blob.
fn invalid(found: &str) -> Error {
    damaged("a precompiled charsmap of replacement rules", found.into())
}

fn label(unit: u32) -> u32 {
    unit & (1 << 31 | 0xff)
}

fn ends_rule(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) as usize) << ((unit & 1 << 9) >> 6)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the blob of rules.
    ///
    /// The children of each node have a separate block; those of the root are in block 1.
    pub(in crate::tokens) fn blob(rules: &[(&str, &str)]) -> Vec<u8> {
        let mut texts = String::new();
        let mut units = vec![0u32; BLOCK_UNITS];
        units[0] = 1 << 10 << 8; // children at 256
        units.resize(2 * BLOCK_UNITS, 1 << 31);
        for (rule, replacement) in rules {
            let (mut children, bytes) = (BLOCK_UNITS, rule.as_bytes());
            for (i, &byte) in bytes.iter().enumerate() {
                let node = children ^ usize::from(byte);
                if label(units[node]) != u32::from(byte) {
                    let block = units.len();
                    units.resize(block + BLOCK_UNITS, 1 << 31);
                    units[node] = u32::from(byte) | ((node ^ block) as u32) << 10;
                }
                children = node ^ offset(units[node]);
                if i + 1 == bytes.len() {
                    units[node] |= 1 << 8;
                    units[children] = 1 << 31 | texts.len() as u32;
                }
            }
            texts += replacement;
            texts.push('\0');
        }
        let array: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&(array.len() as u32).to_le_bytes()[..], &array, texts.as_bytes()].concat()
    }

    #[test]
    fn the_longest_rule_is_found() {
        let charsmap = Charsmap::parse(&blob(&[("a", "x"), ("abc", "yz"), ("é", ""), ("\t", " ")])).unwrap();
        assert_eq!(charsmap.longest_match("abd"), Some((1, "x")));
        assert_eq!(charsmap.longest_match("abcd"), Some((3, "yz")));
        assert_eq!(charsmap.longest_match("é"), Some((2, "")));
        assert_eq!(charsmap.longest_match("\tx"), Some((1, " ")));
        for text in ["", "b", "è", "\0", "\0a"] {
            assert_eq!(charsmap.longest_match(text), None, "{text:?}");
        }
    }

    #[test]
    fn damaged_blobs_are_errors() {
        let good = blob(&[("a", "x"), ("é", "y")]);
        assert!(Charsmap::parse(&good).is_ok());
        let with_unit = |index: usize, unit: u32| {
            let mut bytes = good.clone();
            bytes[4 + 4 * index..][..4].copy_from_slice(&unit.to_le_bytes());
            bytes
        };
        let a = BLOCK_UNITS + usize::from(b'a');
        let cases = [
            Vec::new(),
            good[..3].to_vec(),
            good[..100].to_vec(),
            [&8u32.to_le_bytes()[..], &[0; 8]].concat(),
            [&good[..], &[0xff]].concat(),
            // Children beyond the array, and a replacement beyond the text.
            with_unit(0, 1 << 30),
            with_unit(a, u32::from(b'a') | 1 << 29),
            with_unit(2 * BLOCK_UNITS, 1 << 31 | 1000),
        ];
        for (number, bytes) in cases.iter().enumerate() {
            let result = Charsmap::parse(bytes);
            assert!(matches!(result, Err(Error::TokenizerFile { .. })), "case {number}");
        }
    }
}
