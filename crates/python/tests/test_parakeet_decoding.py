"""Searches of exported Parakeet models against their own generate, on small random models."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from panda_rnnt.decoding import (
    CallbackModel,
    beam_search,
    greedy_search,
    parakeet_model,
)
from panda_rnnt.transformers import fuse
from test_transformers import model_and_inputs
from torch import Tensor


def model_and_features(kind: str, seed: int) -> tuple[Any, dict[str, Tensor]]:
    """Returns a model that emits labels and blanks of all durations, and its inputs."""
    model, inputs = model_and_inputs(kind, seed)
    model.eval().generation_config.decoder_start_token_id = model.config.blank_token_id
    with torch.no_grad():
        for layer in (model.joint.head, model.decoder.embedding, model.decoder.decoder_projector):
            layer.weight.normal_(0.0, 1.0)
        for weight in model.decoder.lstm.parameters():
            weight.normal_(0.0, 1.0)
        model.encoder_projector.weight.normal_(0.0, 3.0)
        # Without long runs of labels on a frame, which end at the length limit of generate.
        model.joint.head.bias[model.config.blank_token_id] += 4.0 if kind == "rnnt" else 0.0
        if kind == "tdt":
            model.joint.head.bias[model.config.vocab_size] -= 3.0
            # generate must not take a duration for a token.
            columns = range(model.config.vocab_size, len(model.joint.head.bias))
            model.generation_config.suppress_tokens = list(columns)
    features = {name: inputs[name] for name in ("input_features", "attention_mask")}
    return model, features


def generated(model: Any, features: dict[str, Tensor], lengths: list[int]) -> list[list[tuple[int, int]]]:
    """Returns labels and frames of generate."""
    outputs = model.generate(**features)
    results = []
    for tokens, durations, length in zip(outputs.sequences, outputs.durations, lengths, strict=True):
        frame, pairs = 0, []
        for token, duration in zip(tokens[1:].tolist(), durations[1:].tolist(), strict=True):
            if frame >= length:
                break
            if token != model.config.blank_token_id:
                pairs.append((token, frame))
            frame += duration
        assert frame >= length, "generate has reached its limit"
        results.append(pairs)
    return results


def predict_with(model: Any) -> Any:
    def predict(labels: Tensor, states: Any) -> tuple[Tensor, Any]:
        outputs, states = model.decoder.lstm(model.decoder.embedding(labels)[:, None], states)
        return model.decoder.decoder_projector(outputs)[:, 0], states

    return predict


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("kind", ["rnnt", "tdt"])
def test_greedy_search_equals_generate(kind: str, is_fused: bool) -> None:
    labels = 0
    for seed in range(6):
        model, features = model_and_features(kind, seed)
        with torch.no_grad():
            audio = model.get_audio_features(**features, output_attention_mask=True)
        lengths = audio.attention_mask.sum(-1)
        expected = generated(model, features, lengths.tolist())
        if is_fused:
            fuse(model)
        max_symbols = model.config.max_symbols_per_step if kind == "rnnt" else None
        found = greedy_search(parakeet_model(model), audio.pooler_output, lengths, max_symbols=max_symbols)
        assert [list(zip(h.labels, h.frames, strict=True)) for h in found] == expected
        labels += sum(len(pairs) for pairs in expected)
        durations = model.config.durations if kind == "tdt" else ()
        functions = CallbackModel(
            predict_with(model),
            lambda rows, outputs, model=model: model.joint(outputs, rows),
            model.config.vocab_size,
            loss=kind,  # type: ignore[arg-type]
            blank=model.config.blank_token_id,
            durations=durations,
            state_axis=1,
        )
        others = greedy_search(functions, audio.pooler_output, lengths, max_symbols=max_symbols)
        assert [h.labels for h in others] == [h.labels for h in found]
        exported = beam_search(parakeet_model(model), audio.pooler_output, lengths, nbest=3)
        called = beam_search(functions, audio.pooler_output, lengths, nbest=3)
        for a, b in zip(exported, called, strict=True):
            assert [h.labels for h in a] == [h.labels for h in b]
            assert [h.log_prob for h in a] == pytest.approx([h.log_prob for h in b], abs=1e-2)
    assert labels > 20


def test_other_models_and_adapters_are_refused() -> None:
    with pytest.raises(TypeError, match="model: expected ParakeetForRNNT or ParakeetForTDT, found Linear"):
        parakeet_model(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="found ParakeetForCTC"):
        parakeet_model(model_and_inputs("ctc")[0])
    model, _ = model_and_features("rnnt", 0)
    model.config.hidden_act = "gelu"
    with pytest.raises(ValueError, match="hidden_act: expected 'relu' or 'tanh', found 'gelu'"):
        parakeet_model(model)
    peft = pytest.importorskip("peft")
    model, features = model_and_features("rnnt", 0)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["head"], init_lora_weights=False)
    )
    with pytest.raises(ValueError, match="model: expected merged adapters"):
        parakeet_model(adapted.get_base_model())
    with torch.no_grad():
        audio = adapted.get_base_model().get_audio_features(**features, output_attention_mask=True)
    lengths = audio.attention_mask.sum(-1)
    merged = adapted.merge_and_unload()
    found = greedy_search(parakeet_model(merged), audio.pooler_output, lengths, max_symbols=10)
    pairs = [list(zip(h.labels, h.frames, strict=True)) for h in found]
    assert pairs == generated(merged, features, lengths.tolist())
