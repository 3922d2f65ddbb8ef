"""Exported models in transformers and torch, on the golden models of ``../shared``.

``panda import`` reads a small FastConformer model that NeMo has trained, and ``panda export`` writes it.
Transformers must compute NeMo's results from the folder, and torch must read the archive's tensors.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tarfile
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

REPOSITORY = pathlib.Path(__file__).parents[3]
GOLDEN = REPOSITORY.parent / "shared" / "golden" / "nemo"
PROGRAM = os.environ.get("PANDA_PROGRAM")

# Golden folders whose models transformers has, and their classes.
CLASSES = {
    "fc_ctc": "ParakeetForCTC",
    "fc_tdt": "ParakeetForTDT",
    "fc_stream_chunked": "NemotronAsrStreamingForRNNT",
}
MODELS = [
    *CLASSES,
    "fc_rnnt",
    "fc_hybrid_rnnt_ctc",
    "fc_hybrid_tdt_ctc",
    "fc_stateless",
    "fc_stream_regular",
]
# In float32, NeMo and transformers differ by up to 4e-6 (encoder output) and 3e-5 (scores).
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-5, 5e-5

if not GOLDEN.is_dir() and os.environ.get("CI") != "true":
    pytest.skip(f"{GOLDEN} is missing: there are no golden models", allow_module_level=True)
if not PROGRAM:
    pytest.skip("PANDA_PROGRAM is not set to the program panda", allow_module_level=True)


def run_program(*arguments: object) -> None:
    command = [str(PROGRAM), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Checkpoints of the golden models."""
    folder = tmp_path_factory.mktemp("checkpoints")
    paths = {}
    for name in MODELS:
        paths[name] = folder / f"{name}.safetensors"
        kind = json.loads((GOLDEN / name / "case.json").read_text())["tokenizer"]
        tokenizer = GOLDEN / "tokenizers" / kind / "tokenizer.model"
        run_program("import", GOLDEN / name, "--tokenizer", tokenizer, "-o", paths[name])
    return paths


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    found, expected = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (found, expected))
    assert torch.equal(found, expected)


@pytest.fixture(scope="module", params=CLASSES)
def exported(
    request: pytest.FixtureRequest,
    checkpoints: dict[str, pathlib.Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Any, dict[str, torch.Tensor]]:
    """Name, model of transformers, and golden tensors."""
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    run_program("export", checkpoints[name], "--to", "huggingface", folder)
    model_class = getattr(transformers, CLASSES[name])
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    problems = {key: value for key, value in report.items() if value}
    assert not problems
    assert json.loads((folder / "config.json").read_text())["architectures"] == [CLASSES[name]]
    return name, model.eval(), load_file(GOLDEN / name / "io.safetensors")


def encode(model: Any, golden: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the encoder output of the golden features."""
    mel = golden["mel"].transpose(1, 2)
    mask = torch.arange(mel.shape[1]) < golden["mel_len"][:, None]
    with torch.no_grad():
        output: torch.Tensor = model.encoder(mel, attention_mask=mask).last_hidden_state
    return output


def test_encoder_outputs_in_transformers_are_those_of_nemo(
    exported: tuple[str, Any, dict[str, torch.Tensor]],
) -> None:
    _, model, golden = exported
    found = encode(model, golden)
    for output, expected, frames in zip(found, golden["enc"], golden["enc_len"], strict=True):
        assert_close(output[:frames], expected[:frames])


def test_scores_in_transformers_are_those_of_nemo(
    exported: tuple[str, Any, dict[str, torch.Tensor]],
) -> None:
    name, model, golden = exported
    encoded = encode(model, golden)
    with torch.no_grad():
        if name == "fc_ctc":
            log_probs = model.ctc_head(encoded).log_softmax(-1)
            for found, expected, frames in zip(
                log_probs, golden["ctc.log_probs"], golden["enc_len"], strict=True
            ):
                assert_close(found[:frames], expected[:frames])
            return
        start = torch.full((len(encoded), 1), model.config.blank_token_id)
        predicted = model.decoder(torch.cat([start, golden["labels"].clamp_min(0)], 1))
        encoded = model.encoder_projector(encoded)
    utterances = [b for b in range(len(encoded)) if f"joint.logits.utt{b}" in golden]
    assert utterances
    for b in utterances:
        expected = golden[f"joint.logits.utt{b}"]
        frames, positions = expected.shape[:2]
        with torch.no_grad():
            found = model.joint(
                encoder_hidden_states=encoded[b, :frames, None],
                decoder_hidden_states=predicted[b, None, :positions],
            )
        assert_close(found, expected)


@pytest.mark.parametrize("name", MODELS)
def test_torch_reads_the_tensors_of_an_archive(
    name: str, checkpoints: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    archive = tmp_path / "model.nemo"
    run_program("export", checkpoints[name], "--to", "nemo", archive)
    with tarfile.open(archive) as file:
        members = {pathlib.PurePath(member.name).name: member for member in file.getmembers()}
        assert "model_config.yaml" in members
        assert any(member.endswith("tokenizer.model") for member in members)
        file.extract(members["model_weights.ckpt"], tmp_path, filter="data")
    weights = torch.load(tmp_path / members["model_weights.ckpt"].name, weights_only=True)
    expected = load_file(GOLDEN / name / "weights.safetensors")
    assert set(weights) == set(expected)
    for key, tensor in weights.items():
        assert_same_bits(tensor, expected[key])


@pytest.mark.parametrize("name", MODELS)
def test_exported_folders_and_archives_are_imported_with_the_same_bits(
    name: str, checkpoints: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    original = load_file(checkpoints[name])
    outputs = {"nemo": "model.nemo", **({"huggingface": "folder"} if name in CLASSES else {})}
    for layout, output in outputs.items():
        run_program("export", checkpoints[name], "--to", layout, tmp_path / output)
        run_program("import", tmp_path / output, "-o", tmp_path / "again.safetensors")
        again = load_file(tmp_path / "again.safetensors")
        assert {key for key in original if key.startswith("weight/")} <= set(again)
        for key in original:
            if key.startswith("weight/"):
                assert_same_bits(again[key], original[key])
