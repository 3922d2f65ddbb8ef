//! Reads the pickle of a torch checkpoint: a dictionary of tensors by name.
//!
//! A pickle is a program for a stack machine that can call any function of Python. This interpreter
//! has the opcodes that `torch.save` writes for a dictionary of tensors, and knows a few names:
//!
//! | global | meaning |
//! |---|---|
//! | `collections OrderedDict` | a dictionary |
//! | `torch._utils _rebuild_tensor_v2` | a tensor: storage, offset, shape, strides |
//! | `torch FloatStorage` and others | the dtype of a storage |
//!
//! All other opcodes and globals are errors that name them. Nothing is executed.
use std::collections::HashMap;

use safetensors::Dtype;

/// Names of storage types, and their dtypes.
const STORAGE_TYPES: [(&str, Dtype); 6] = [
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::BF16),
    ("DoubleStorage", Dtype::F64),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
];
/// Largest number of axes of a tensor.
const MAX_AXES: usize = 8;

/// A tensor of a pickle, with the key of its storage.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PickledTensor {
    pub dtype: Dtype,
    /// Name of the storage's file in `data/`.
    pub storage_key: String,
    /// Number of elements of the storage.
    pub storage_elements: u64,
    pub first_element: u64,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// What is wrong with a pickle: expected and found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PickleError {
    /// Name of the entry; empty if it concerns the whole pickle.
    pub item: String,
    pub expected: String,
    pub found: String,
}

/// Index of a value. Values refer to each other by index, so that none is dropped recursively.
type ValueId = usize;

/// A value of the stack machine.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    None,
    Bool(bool),
    Int(i64),
    Text(String),
    Tuple(Vec<ValueId>),
    Dict(Vec<(ValueId, ValueId)>),
    OrderedDictClass,
    RebuildTensor,
    StorageType(Dtype),
    Storage { dtype: Dtype, key: String, elements: u64 },
    Tensor(Box<PickledTensor>),
}

impl Value {
    /// Returns the name of the type for messages.
    fn type_name(&self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Text(_) => "a string",
            Value::Tuple(_) => "a tuple",
            Value::Dict(_) => "a dictionary",
            Value::OrderedDictClass | Value::RebuildTensor | Value::StorageType(_) => "a global",
            Value::Storage { .. } => "a storage",
            Value::Tensor(_) => "a tensor",
        }
    }
}

type PickleResult<T> = std::result::Result<T, PickleError>;

fn error<T>(expected: impl Into<String>, found: impl Into<String>) -> PickleResult<T> {
    Err(PickleError { item: String::new(), expected: expected.into(), found: found.into() })
}

/// Reads the tensors of a pickle, in its order.
///
/// # Errors
/// The first unknown opcode or global, an invalid argument, or an entry that is no tensor.
pub(crate) fn read_tensors(bytes: &[u8]) -> PickleResult<Vec<(String, PickledTensor)>> {
    let mut machine = PickleInterpreter { bytes, position: 0, ..PickleInterpreter::default() };
    let root = machine.run()?;
    let Value::Dict(entries) = &machine.values[root] else {
        return error("a dictionary of tensors", machine.values[root].type_name());
    };
    let tensor_of = |&(key, value): &(ValueId, ValueId)| {
        let Value::Text(name) = &machine.values[key] else {
            return error("names of tensors", machine.values[key].type_name());
        };
        match &machine.values[value] {
            Value::Tensor(tensor) => Ok((name.clone(), (**tensor).clone())),
            other => Err(PickleError {
                item: name.clone(),
                expected: "a tensor".into(),
                found: other.type_name().into(),
            }),
        }
    };
    entries.iter().map(tensor_of).collect()
}

/// The stack machine.
#[derive(Default)]
struct PickleInterpreter<'a> {
    bytes: &'a [u8],
    position: usize,
    /// All values; stack and memo contain their indices.
    values: Vec<Value>,
    stack: Vec<ValueId>,
    /// Heights of the stack at marks.
    marks: Vec<usize>,
    memo: HashMap<u32, ValueId>,
}

impl PickleInterpreter<'_> {
    /// Runs the program; returns the value on top of the stack at its end.
    fn run(&mut self) -> PickleResult<ValueId> {
        loop {
            let start = self.position;
            let opcode = self.take::<1>()?[0];
            match opcode {
                0x80 => match self.take::<1>()?[0] {
                    2 => {}
                    version => return error("pickle protocol 2", format!("protocol {version}")),
                },
                b'c' => self.push_global()?,
                b'(' => self.marks.push(self.stack.len()),
                b')' => self.push(Value::Tuple(Vec::new())),
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::Tuple(items));
                }
                0x85..=0x87 => {
                    let items = self.pop_many(usize::from(opcode - 0x84))?;
                    self.push(Value::Tuple(items));
                }
                b'}' => self.push(Value::Dict(Vec::new())),
                b's' => {
                    let pair = self.pop_many(2)?;
                    self.extend_dict(&pair)?;
                }
                b'u' => {
                    let pairs = self.pop_to_mark()?;
                    self.extend_dict(&pairs)?;
                }
                b'N' => self.push(Value::None),
                0x88 => self.push(Value::Bool(true)),
                0x89 => self.push(Value::Bool(false)),
                b'K' => {
                    let [value] = self.take()?;
                    self.push(Value::Int(value.into()));
                }
                b'M' => {
                    let value = u16::from_le_bytes(self.take()?);
                    self.push(Value::Int(value.into()));
                }
                b'J' => {
                    let value = i32::from_le_bytes(self.take()?);
                    self.push(Value::Int(value.into()));
                }
                0x8a => self.push_long()?,
                b'X' => self.push_text()?,
                b'q' => {
                    let [key] = self.take()?;
                    self.memoize(key.into())?;
                }
                b'r' => {
                    let key = u32::from_le_bytes(self.take()?);
                    self.memoize(key)?;
                }
                b'h' => {
                    let [key] = self.take()?;
                    self.recall(key.into())?;
                }
                b'j' => {
                    let key = u32::from_le_bytes(self.take()?);
                    self.recall(key)?;
                }
                b'Q' => self.push_storage()?,
                b'R' => self.call()?,
                b'b' => self.set_state()?,
                b'.' => return self.pop(),
                other => {
                    let known = "an opcode of a dictionary of tensors";
                    return error(known, format!("opcode {other:#04x} at byte {start}"));
                }
            }
        }
    }

    fn take<const N: usize>(&mut self) -> PickleResult<[u8; N]> {
        let slice = self.take_slice(N)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(slice);
        Ok(bytes)
    }

    fn take_slice(&mut self, length: usize) -> PickleResult<&[u8]> {
        match self.bytes.get(self.position..).and_then(|rest| rest.get(..length)) {
            Some(slice) => {
                self.position += length;
                Ok(slice)
            }
            None => error("a whole pickle", format!("its end at byte {}: truncated", self.bytes.len())),
        }
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> PickleResult<ValueId> {
        Ok(self.pop_many(1)?[0])
    }

    /// Pops values above the last mark.
    fn pop_many(&mut self, count: usize) -> PickleResult<Vec<ValueId>> {
        let lowest = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count).filter(|&height| height >= lowest) {
            Some(height) => Ok(self.stack.split_off(height)),
            None => error(format!("{count} values on the stack"), "fewer"),
        }
    }

    fn pop_to_mark(&mut self) -> PickleResult<Vec<ValueId>> {
        match self.marks.pop() {
            Some(height) => Ok(self.stack.split_off(height)),
            None => error("a mark on the stack", "none"),
        }
    }

    fn memoize(&mut self, key: u32) -> PickleResult<()> {
        match self.stack.last() {
            Some(&value) => {
                self.memo.insert(key, value);
                Ok(())
            }
            None => error("a value to memoize", "an empty stack"),
        }
    }

    fn recall(&mut self, key: u32) -> PickleResult<()> {
        match self.memo.get(&key) {
            Some(&value) => {
                self.stack.push(value);
                Ok(())
            }
            None => error("a memoized value", format!("the unused key {key}")),
        }
    }

    /// Pushes one of the known globals.
    fn push_global(&mut self) -> PickleResult<()> {
        let mut line = || -> PickleResult<String> {
            let rest = self.bytes.get(self.position..).unwrap_or_default();
            match rest.iter().position(|&byte| byte == b'\n') {
                Some(length) => {
                    self.position += length + 1;
                    Ok(String::from_utf8_lossy(&rest[..length]).into_owned())
                }
                None => error("a whole pickle", "a name without its end: truncated"),
            }
        };
        let (module, name) = (line()?, line()?);
        let storage_type = STORAGE_TYPES.iter().find(|(known, _)| module == "torch" && *known == name);
        let value = match (module.as_str(), name.as_str(), storage_type) {
            ("collections", "OrderedDict", _) => Value::OrderedDictClass,
            ("torch._utils", "_rebuild_tensor_v2", _) => Value::RebuildTensor,
            (_, _, Some(&(_, dtype))) => Value::StorageType(dtype),
            _ => {
                let known = "OrderedDict, _rebuild_tensor_v2 and storage types only";
                return error(known, format!("the global `{module} {name}`"));
            }
        };
        self.push(value);
        Ok(())
    }

    /// Pushes an integer of up to eight bytes.
    fn push_long(&mut self) -> PickleResult<()> {
        let [length] = self.take()?;
        let bytes = self.take_slice(length.into())?;
        if bytes.len() > 8 {
            return error("integers of at most 64 bits", format!("{} bytes", bytes.len()));
        }
        let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { 0xff } else { 0 };
        let mut padded = [sign; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(padded)));
        Ok(())
    }

    fn push_text(&mut self) -> PickleResult<()> {
        let length = u32::from_le_bytes(self.take()?);
        let text = String::from_utf8(self.take_slice(length as usize)?.to_vec());
        match text {
            Ok(text) => self.push(Value::Text(text)),
            Err(_) => return error("text in UTF-8", "other bytes"),
        }
        Ok(())
    }

    /// Replaces `("storage", type, key, location, elements)` by a storage.
    fn push_storage(&mut self) -> PickleResult<()> {
        let id = self.pop()?;
        let values: Vec<&Value> = match &self.values[id] {
            Value::Tuple(items) => items.iter().map(|&item| &self.values[item]).collect(),
            _ => Vec::new(),
        };
        let storage = match values[..] {
            [
                Value::Text(kind),
                &Value::StorageType(dtype),
                Value::Text(key),
                Value::Text(_),
                &Value::Int(count),
            ] if kind == "storage" && count >= 0 => {
                Value::Storage { dtype, key: key.clone(), elements: count as u64 }
            }
            _ => return error("a persistent id (\"storage\", type, key, location, elements)", "another"),
        };
        self.push(storage);
        Ok(())
    }

    /// Calls a global: creates a dictionary or a tensor.
    fn call(&mut self) -> PickleResult<()> {
        let pair = self.pop_many(2)?;
        let (function, arguments) = (&self.values[pair[0]], &self.values[pair[1]]);
        let Value::Tuple(arguments) = arguments else {
            return error("a tuple of arguments", arguments.type_name());
        };
        let value = match function {
            Value::OrderedDictClass if arguments.is_empty() => Value::Dict(Vec::new()),
            Value::OrderedDictClass => return error("OrderedDict()", "arguments"),
            Value::RebuildTensor => Value::Tensor(Box::new(self.rebuild_tensor(arguments)?)),
            other => return error("OrderedDict or _rebuild_tensor_v2 to call", other.type_name()),
        };
        self.push(value);
        Ok(())
    }

    /// Creates a tensor from storage, offset, shape, strides and two unused arguments.
    fn rebuild_tensor(&self, arguments: &[ValueId]) -> PickleResult<PickledTensor> {
        let values: Vec<&Value> = arguments.iter().map(|&id| &self.values[id]).collect();
        let [
            Value::Storage { dtype, key, elements },
            &Value::Int(first_element),
            Value::Tuple(shape),
            Value::Tuple(strides),
            Value::Bool(_),
            Value::Dict(_),
        ] = values[..]
        else {
            let types: Vec<&str> = values.iter().take(MAX_AXES).map(|value| value.type_name()).collect();
            return error("_rebuild_tensor_v2(storage, offset, shape, strides, ...)", types.join(", "));
        };
        let numbers = |ids: &[ValueId]| {
            let number = |&id: &ValueId| match self.values[id] {
                Value::Int(number) => usize::try_from(number).ok(),
                _ => None,
            };
            ids.iter().map(number).collect::<Option<Vec<usize>>>().filter(|numbers| numbers.len() <= MAX_AXES)
        };
        match (numbers(shape), numbers(strides), u64::try_from(first_element)) {
            (Some(shape), Some(strides), Ok(first_element)) if shape.len() == strides.len() => {
                Ok(PickledTensor {
                    dtype: *dtype,
                    storage_key: key.clone(),
                    storage_elements: *elements,
                    first_element,
                    shape,
                    strides,
                })
            }
            _ => error(format!("offset, shape and strides of at most {MAX_AXES} axes"), "other values"),
        }
    }

    /// Ignores the attributes of a dictionary (`_metadata`: versions of modules).
    fn set_state(&mut self) -> PickleResult<()> {
        let pair = self.pop_many(2)?;
        match (&self.values[pair[0]], &self.values[pair[1]]) {
            (Value::Dict(_), Value::Dict(_)) => {
                self.stack.push(pair[0]);
                Ok(())
            }
            (object, _) => error("attributes of a dictionary only", object.type_name()),
        }
    }

    /// Adds keys and values to the dictionary on top of the stack.
    fn extend_dict(&mut self, items: &[ValueId]) -> PickleResult<()> {
        let lowest = self.marks.last().copied().unwrap_or(0);
        let dict = self.stack.get(lowest..).and_then(|stack| stack.last().copied());
        match dict.map(|id| &mut self.values[id]) {
            Some(Value::Dict(entries)) if items.len().is_multiple_of(2) => {
                entries.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            Some(Value::Dict(_)) => error("a value for each key", "an odd number of items"),
            Some(other) => error("a dictionary to fill", other.type_name()),
            None => error("a dictionary to fill", "an empty stack"),
        }
    }
}

#[cfg(test)]
mod tests;
