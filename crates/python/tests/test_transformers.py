"""Fused Parakeet models against the original ones, on small random models."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from panda_rnnt.transformers import fuse, tdt_loss, unfuse  # noqa: E402
from transformers import (  # noqa: E402
    ParakeetCTCConfig,
    ParakeetEncoderConfig,
    ParakeetForCTC,
    ParakeetForRNNT,
    ParakeetForTDT,
    ParakeetRNNTConfig,
    ParakeetTDTConfig,
)
from transformers.loss.loss_tdt import tdt_loss as original_tdt_loss  # noqa: E402

KINDS = ["rnnt", "tdt", "ctc"]


def model_and_inputs(kind: str, seed: int = 0) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(seed)
    encoder = ParakeetEncoderConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_mel_bins=16,
        subsampling_conv_channels=8,
        dropout=0.0,
        activation_dropout=0.0,
        layerdrop=0.0,
        attention_dropout=0.0,
        dropout_positions=0.0,
    ).to_dict()
    vocabulary = 11
    blank = vocabulary - 1
    decoder: dict[str, Any] = {"decoder_hidden_size": 12, "num_decoder_layers": 1, "blank_token_id": blank}
    shared: dict[str, Any] = {"vocab_size": vocabulary, "encoder_config": encoder, "pad_token_id": blank}
    model: Any
    if kind == "ctc":
        model = ParakeetForCTC(ParakeetCTCConfig(**shared))
    elif kind == "rnnt":
        model = ParakeetForRNNT(ParakeetRNNTConfig(**shared, **decoder))
    else:
        model = ParakeetForTDT(ParakeetTDTConfig(**shared, **decoder, durations=[0, 1, 2, 3, 4]))
    labels = torch.randint(0, blank, (2, 4))
    labels[1, 3:] = blank
    inputs = {
        "input_features": torch.randn(2, 96, 16),
        "attention_mask": torch.ones(2, 96, dtype=torch.long),
        "labels": labels,
    }
    inputs["attention_mask"][1, 70:] = 0
    if kind != "ctc":
        start = torch.full((2, 1), blank)
        inputs["decoder_input_ids"] = torch.cat([start, labels], 1)
    return model.train(), inputs


def loss_and_gradients(model: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.sum().backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_fused_model_has_the_same_loss_and_gradients(kind: str) -> None:
    model, inputs = model_and_inputs(kind)
    # In float64, rounding of the model does not hide errors; the original losses use float32.
    model.double()
    inputs["input_features"] = inputs["input_features"].double()
    keys = list(model.state_dict())
    reductions = [None] if kind == "ctc" else ["mean_volume", "mean_batch", "mean", "sum", "none", None]
    for reduction in reductions:
        arguments = dict(inputs) if reduction is None else {**inputs, "reduction": reduction}
        expected, expected_gradients = loss_and_gradients(unfuse(model), arguments)
        found, gradients = loss_and_gradients(fuse(model), arguments)
        torch.testing.assert_close(found, expected.double(), rtol=1e-6, atol=1e-6)
        assert gradients.keys() == expected_gradients.keys()
        for name, gradient in expected_gradients.items():
            scale = max(float(gradient.abs().max()), 1e-3)
            difference = float((gradients[name] - gradient).abs().max())
            assert difference <= 1e-5 * scale, f"{reduction}, {name}: {difference} at scale {scale}"
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("kind", KINDS)
def test_logits_exist_only_when_asked_for(kind: str, tmp_path: Any) -> None:
    model, inputs = model_and_inputs(kind)
    expected = model(**inputs)
    fuse(model)
    assert model(**inputs).logits is None
    torch.testing.assert_close(model(**inputs, output_logits=True).logits, expected.logits)
    without_labels = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    torch.testing.assert_close(model(**without_labels).logits, expected.logits)
    assert isinstance(model(**inputs, return_dict=False), tuple)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.architectures == [type(unfuse(model)).__name__]


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_a_fused_model(kind: str) -> None:
    model, inputs = model_and_inputs(kind)
    expected = fuse(model)(**inputs).loss
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(**inputs).loss, expected)
    original = type(model_and_inputs(kind)[0])
    assert type(model) is not original and type(model).__name__ == original.__name__
    assert type(unfuse(model)) is original


@pytest.mark.parametrize("kind", KINDS)
def test_trainer_runs_unchanged(kind: str, tmp_path: Any) -> None:
    pytest.importorskip("accelerate")
    losses = {}
    for is_fused in (False, True):
        model, inputs = model_and_inputs(kind)
        if is_fused:
            fuse(model)
        rows = [{name: tensor[i] for name, tensor in inputs.items()} for i in range(2)]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / str(is_fused)),
            max_steps=3,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
        losses[is_fused] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses[True]) == 3
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


def test_adapters_of_lora() -> None:
    peft = pytest.importorskip("peft")
    model, inputs = model_and_inputs("tdt")
    config = peft.LoraConfig(r=2, target_modules=["head", "encoder_projector"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    expected, expected_gradients = loss_and_gradients(adapted, inputs)
    found, gradients = loss_and_gradients(fuse(adapted), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected_gradients.keys() and any("lora_A" in name for name in gradients)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}], ids=str)
def test_other_adapters_are_refused(options: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft")
    model, _ = model_and_inputs("rnnt")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["head"], **options))
    with pytest.raises(ValueError, match="expected plain LoRA"):
        fuse(adapted)


def test_other_models_are_refused() -> None:
    with pytest.raises(TypeError, match=r"model: expected ParakeetForRNNT.*found Linear"):
        fuse(torch.nn.Linear(2, 2))
    model, _ = model_and_inputs("rnnt")
    model.config.hidden_act = "gelu"
    with pytest.raises(ValueError, match=r"hidden_act: expected 'relu' or 'tanh', found 'gelu'"):
        fuse(model)


@pytest.mark.parametrize("reduction", ["mean_volume", "mean_batch", "mean", "sum", "none"])
def test_tdt_loss_equals_the_original(reduction: Any) -> None:
    for seed in range(40):
        torch.manual_seed(seed)
        batch, frames, labels, classes = 3, 9, 4, 7
        logits = torch.randn(batch, frames, labels + 1, classes + 3, requires_grad=True)
        lengths = (torch.randint(5, frames + 1, (batch,)), torch.randint(1, labels + 1, (batch,)))
        targets = torch.randint(0, classes - 1, (batch, labels))
        arguments = (targets, *lengths, classes - 1, [0, 1, 2])
        values = []
        for function in (original_tdt_loss, tdt_loss):
            value = function(logits[..., :classes], logits[..., classes:], *arguments, reduction=reduction)
            values.append((value, torch.autograd.grad(value.sum(), logits)[0]))
        torch.testing.assert_close(values[1], values[0], rtol=1e-5, atol=1e-5)
