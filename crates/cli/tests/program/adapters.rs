//! Tests of `panda adapter`, and of `panda train --from` with an adapter.
use super::toy::{Toy, leftovers};
use super::{panda, run_command};

/// Replaces the encoder of the toy recipe by a Conformer.
const CONFORMER: (&str, &str) = (
    "layers = 1\nhidden = 16\nbidirectional = true\n",
    "kind = \"conformer\"\nlayers = 1\nwidth = 8\nheads = 2\nfeed_forward = 16\nkernel = 3\n",
);

#[test]
fn an_adapter_is_extracted_applied_merged_and_removed() {
    let toy = Toy::new();
    let folder = toy.path("");
    let run = |arguments: &[&str]| {
        let (code, out, err) = run_command(panda(&folder, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        out
    };
    toy.recipe(&[CONFORMER, ("epochs = 3", "epochs = 1")]);
    run(&["train", "recipe.toml", "--run", "run"]);
    let sections = "rates = { joint = 0.5 }\n[adapter]\nrank = 2\n[batch]";
    toy.recipe(&[CONFORMER, ("[batch]", sections), ("1e-2", "0.1")]);
    let base = "run/last.safetensors";
    run(&["train", "--from", base, "recipe.toml", "--run", "adapted"]);
    let adapted = "adapted/last.safetensors";
    let info = run(&["info", adapted]);
    assert!(info.contains("encoder.layers.0.self_attn.linear_q.lora_a"), "{info}");

    let out = run(&["adapter", "extract", adapted, "-o", "adapter.safetensors"]);
    assert!(out.starts_with("adapter.safetensors: adapter with "), "{out}");
    let out = run(&["adapter", "apply", base, "adapter.safetensors", "-o", "applied.safetensors"]);
    assert!(out.starts_with("applied.safetensors: checkpoint with "), "{out}");
    run(&["adapter", "merge", adapted, "-o", "merged.safetensors"]);
    run(&["adapter", "remove", "applied.safetensors", "-o", "removed.safetensors"]);
    let transcribe = |checkpoint: &str| run(&["transcribe", checkpoint, "1.wav", "3.wav", "5.wav"]);
    let texts = transcribe(adapted);
    assert_eq!([transcribe("applied.safetensors"), transcribe("merged.safetensors")], [&*texts, &*texts]);
    assert_eq!(transcribe("removed.safetensors"), transcribe(base));
    assert!(!run(&["info", "merged.safetensors"]).contains("lora_a"));

    for (arguments, part) in [
        (&["adapter", "extract", base, "-o", "x"][..], "expected a recipe with [adapter], found none"),
        (&["adapter", "remove", adapted, "-o", "x"], "found other trained parameters: ctc.bias, ctc.weight"),
        (
            &["adapter", "apply", adapted, "adapter.safetensors", "-o", "x"],
            "expected a base without an adapter",
        ),
        (
            &["adapter", "apply", "merged.safetensors", "adapter.safetensors", "-o", "x"],
            "merged.safetensors: expected encoder.layers.0.feed_forward1.linear1.weight with the checksum",
        ),
        (&["adapter", "apply", base, adapted, "-o", "x"], "expected format \"panda adapter\""),
        (&["adapter", "merge", "applied.safetensors", "-o", "applied.safetensors"], "found the input"),
    ] {
        let (code, _, err) = run_command(panda(&folder, arguments));
        assert!(code == Some(2) && err.starts_with("error: ") && err.contains(part), "{arguments:?}: {err}");
        assert!(!toy.path("x").exists());
    }
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);
}
