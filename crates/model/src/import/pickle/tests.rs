//! Tests of the pickle reader with hand-written pickles.
use super::*;

#[path = "../../../../speech/tests/suite/mutants.rs"]
mod mutants;

/// The pickle of `{"w": tensor}` with storage `0` of 6 floats, shape `[2, 3]` and strides `[3, 1]`.
///
/// Torch writes the same opcodes.
fn pickle_of_one_tensor() -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    [
        b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(".to_vec(),
        text("w"),
        b"q\x02ctorch._utils\n_rebuild_tensor_v2\nq\x03((".to_vec(),
        text("storage"),
        b"q\x04ctorch\nFloatStorage\nq\x05".to_vec(),
        text("0"),
        b"q\x06".to_vec(),
        text("cpu"),
        b"q\x07K\x06tQK\x00K\x02K\x03\x86K\x03K\x01\x86\x89h\x00)RtRq\x08u}".to_vec(),
        text("_metadata"),
        b"h\x00)R".to_vec(),
        text(""),
        b"}".to_vec(),
        text("version"),
        b"K\x01sssb.".to_vec(),
    ]
    .concat()
}

fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let start = bytes.windows(old.len()).position(|window| window == old).unwrap();
    [&bytes[..start], new, &bytes[start + old.len()..]].concat()
}

#[test]
fn a_dictionary_of_tensors_is_read() {
    let tensor = PickledTensor {
        dtype: Dtype::F32,
        storage_key: "0".into(),
        storage_elements: 6,
        first_element: 0,
        shape: vec![2, 3],
        strides: vec![3, 1],
    };
    assert_eq!(read_tensors(&pickle_of_one_tensor()).unwrap(), [("w".to_owned(), tensor)]);
}

#[test]
fn all_integers_are_read() {
    for (integer, expected) in [
        (&b"K\xff"[..], 255),
        (b"M\xff\xff", 65535),
        (b"J\xff\xff\xff\x7f", i32::MAX as u64),
        (b"\x8a\x05\x00\x00\x00\x00\x01", 1 << 32),
        (b"\x8a\x00", 0),
    ] {
        let pickle = replaced(&pickle_of_one_tensor(), b"K\x06tQ", &[integer, b"tQ"].concat());
        assert_eq!(read_tensors(&pickle).unwrap()[0].1.storage_elements, expected);
    }
}

#[test]
fn foreign_opcodes_and_globals_are_errors_that_name_them() {
    let valid = pickle_of_one_tensor();
    for (old, new, expected, found) in [
        (&b"\x80\x02c"[..], &b"\x80\x04c"[..], "pickle protocol 2", "protocol 4"),
        (b"collections\nOrderedDict", b"os\nsystem", "OrderedDict, ", "the global `os system`"),
        (b"collections\nOrderedDict", b"builtins\neval", "OrderedDict, ", "the global `builtins eval`"),
        (b"torch\nFloatStorage", b"torch\nload", "storage types only", "the global `torch load`"),
        (b"torch\nFloatStorage", b"os\nFloatStorage", "storage types only", "the global `os FloatStorage`"),
        (b"_rebuild_tensor_v2", b"_rebuild_parameter", "OrderedDict, ", "`torch._utils _rebuild_parameter`"),
        (b")Rq\x01", b")\x81q\x01", "an opcode of", "opcode 0x81 at byte 30"), // NEWOBJ
        (b")Rq\x01", b")iq\x01", "an opcode of", "opcode 0x69"),               // INST
        (b")Rq\x01", b")oq\x01", "an opcode of", "opcode 0x6f"),               // OBJ
        (b"(X\x01", b"]X\x01", "an opcode of", "opcode 0x5d"),                 // EMPTY_LIST
        (b"K\x06tQ", b"K\x06t\x93", "an opcode of", "opcode 0x93"),            // STACK_GLOBAL
        (b"K\x06tQ", b"K\x06tP", "an opcode of", "opcode 0x50"),               // PERSID
        (b"K\x06tQ", b"K\x06\x85Q", "a persistent id", "another"),
        (b"K\x06tQ", b"\x8a\x01\xfftQ", "a persistent id", "another"),
        (b"K\x00K\x02", b"X\x00\x00\x00\x00K\x02", "_rebuild_tensor_v2(", "a storage, a string, a tuple"),
        (b"K\x00K\x02", b"\x8a\x01\x80K\x02", "offset, shape", "other values"),
        (b"K\x02K\x03\x86", b"K\x02\x85", "offset, shape", "other values"),
        (b"K\x02K\x03\x86", b"\x8a\x09\0\0\0\0\0\0\0\0\0\x85", "at most 64 bits", "9 bytes"),
        (b"h\x00)RtRq\x08", b"h\x09)RtRq\x08", "a memoized value", "the unused key 9"),
        (b"\x89h\x00", b"\x89h\x01h\x00", "_rebuild_tensor_v2(", "a boolean"),
        (b"tRq\x08u", b"ttRq\x08u", "_rebuild_tensor_v2 to call", "a dictionary"),
        (b"tRq\x08u", b"tRq\x08.", "a dictionary of tensors", "a tensor"),
        (b"tRq\x08u", b"tRq\x08K\x01u", "a value for each key", "an odd number of items"),
        (b"K\x01sssb.", b"K\x01sssbs.", "values on the stack", "fewer"),
        (b"K\x01sssb.", b"K\x01b.", "attributes of a dictionary only", "a string"),
        (b"K\x01sssb.", b"ub.", "a mark on the stack", "none"),
        (b"K\x01sssb.", b"K\x01sssb", "a whole pickle", "truncated"),
        (b"X\x01\x00\x00\x00w", b"X\x01\x00\x00\x00\xff", "text in UTF-8", "other bytes"),
        (b"X\x01\x00\x00\x00w", b"X\xff\xff\xff\xffw", "a whole pickle", "truncated"),
        (b"X\x01\x00\x00\x00w", b"K\x01", "names of tensors", "an integer"),
    ] {
        let Err(error) = read_tensors(&replaced(&valid, old, new)) else { panic!("{new:?}") };
        let message = format!("expected {}, found {}", error.expected, error.found);
        assert!(message.contains(expected) && message.contains(found), "{new:?}: {message}");
    }
    // A checkpoint with other entries than tensors, such as that of a trainer.
    let start = valid.windows(6).position(|window| window == b"ctorch").unwrap();
    let trainer_pickle = [&valid[..start], b"}u."].concat();
    let error = PickleError { item: "w".into(), expected: "a tensor".into(), found: "a dictionary".into() };
    assert_eq!(read_tensors(&trainer_pickle), Err(error));
}

#[test]
fn long_and_deep_pickles_neither_overflow_the_stack_nor_the_memory() {
    let deep = [b"\x80\x02)".to_vec(), vec![0x85; 1_000_000], b".".to_vec()].concat();
    assert_eq!(read_tensors(&deep).unwrap_err().found, "a tuple");
    // A tuple of itself, doubled 60 times, takes 60 values.
    let doubled: Vec<u8> = (0..60u8).flat_map(|_| *b"q\x00h\x00\x86").collect();
    let bomb = [b"\x80\x02)".to_vec(), doubled, b".".to_vec()].concat();
    assert_eq!(read_tensors(&bomb).unwrap_err().found, "a tuple");
    // A dictionary that contains itself.
    assert_eq!(read_tensors(b"\x80\x02}q\x00X\x01\0\0\0ah\x00s.").unwrap_err().found, "a dictionary");
}

#[test]
fn damaged_pickles_are_errors_or_tensors() {
    let words: &[&[u8]] = &[
        b"cos\nsystem\n",
        b"ctorch\nHalfStorage\n",
        b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x86",
        b"\x85\x85",
        b"h\x00",
        b"h\x01",
        b"q\x00",
        b"(",
        b"t",
        b"R",
        b"s",
        b"u",
        b"b",
        b".",
        b"X\xff\xff\xff\xff",
    ];
    mutants::fuzz("pickle", vec![pickle_of_one_tensor()], words, 5000, |bytes| match read_tensors(bytes) {
        Ok(tensors) => assert!(tensors.iter().all(|(_, tensor)| tensor.shape.len() <= MAX_AXES)),
        Err(error) => assert!(!error.expected.is_empty() && !error.found.is_empty()),
    });
}
