"""Losses of panda_rnnt.numpy against finite differences, without torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import panda_rnnt
import pytest
from panda_rnnt.numpy import rnnt_loss, skipped_sites, transducer_loss


def arguments(dtype: type = np.float64) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [(2, 4, 3), (2, 3, 3), (5, 3), (5,)]
    floats = [random.normal(size=shape).astype(dtype) for shape in shapes]
    return [*floats, np.array([[1, 2], [3, -1]]), np.array([4, 3]), np.array([2, 1])]


def test_gradients_equal_finite_differences() -> None:
    inputs, weights = arguments(), np.array([0.5, 2.0])
    losses, gradients = transducer_loss(*inputs, weights=weights)
    assert gradients is not None and losses.shape == (2,)
    for argument, gradient in zip(inputs, gradients, strict=False):
        for index in np.ndindex(argument.shape):
            values = []
            for step in (1e-6, -1e-6):
                argument[index] += step
                values.append(float(transducer_loss(*inputs).losses @ weights))
                argument[index] -= step
            assert gradient[index] == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7)


def test_scores_and_joint_network_agree() -> None:
    encoded, predicted, weight, bias, *indices = arguments()
    logits = np.tanh(encoded[:, :, None] + predicted[:, None]) @ weight.T + bias
    scored = rnnt_loss(logits, *indices, weights=np.ones(2))
    fused = transducer_loss(encoded, predicted, weight, bias, *indices, weights=np.ones(2))
    np.testing.assert_allclose(scored.losses, fused.losses, rtol=1e-12)
    assert scored.gradient is not None and fused.gradients is not None
    np.testing.assert_allclose(scored.gradient.sum((0, 1, 2)), fused.gradients.bias, atol=1e-12)


def test_results_are_writable_and_keep_their_memory() -> None:
    gradients = transducer_loss(*arguments(np.float32), weights=np.ones(2)).gradients
    assert gradients is not None and gradients.weight.dtype == np.float32
    gradients.weight[:] += 1.0
    assert np.isfinite(gradients.weight).all()


def test_ctc_takes_hidden_rows() -> None:
    encoded, _, weight, bias, targets, lengths, target_lengths = arguments()
    options = panda_rnnt.LossOptions(loss="ctc")
    result = transducer_loss(
        encoded, None, weight, bias, targets, lengths, target_lengths, weights=np.ones(2), options=options
    )
    logits = encoded @ weight.T + bias
    scored = rnnt_loss(logits, targets, lengths, target_lengths, options=options)
    np.testing.assert_allclose(result.losses, scored.losses, rtol=1e-12)
    assert result.gradients is not None and result.gradients.predicted is None


def test_token_weights_and_skipped_sites() -> None:
    inputs, weights = arguments(), np.array([0.5, 2.0])
    plain = transducer_loss(*inputs, weights=weights)
    ones = transducer_loss(*inputs, weights=weights, token_weights=np.ones((2, 2)))
    zeros = transducer_loss(*inputs, weights=weights, token_weights=np.zeros((2, 2)))
    assert plain.gradients is not None and ones.gradients is not None and zeros.gradients is not None
    np.testing.assert_array_equal(ones.gradients.weight, plain.gradients.weight)
    np.testing.assert_array_equal(zeros.losses, plain.losses)
    assert abs(zeros.gradients.weight - plain.gradients.weight).max() > 1e-3
    skipped = skipped_sites(*inputs, weights=weights, options=panda_rnnt.LossOptions(skip=0.05))
    assert skipped.sites > 0 and 0 < skipped.mass <= 0.05 * (0.5 * 6 + 2.0 * 4)


def test_wrong_types_are_refused() -> None:
    inputs = arguments()
    with pytest.raises(TypeError, match="targets: expected integers"):
        transducer_loss(*inputs[:4], inputs[4].astype(float), *inputs[5:])
    with pytest.raises(TypeError, match="encoded: expected floating-point"):
        transducer_loss(inputs[0].astype(int), *inputs[1:])
    with pytest.raises(TypeError, match="bias: expected floating-point"):
        transducer_loss(*inputs[:3], inputs[3].astype(complex), *inputs[4:])
    with pytest.raises(ValueError, match="predicted: expected an array for loss 'rnnt', found None"):
        transducer_loss(inputs[0], None, *inputs[2:])
    with pytest.raises(ValueError, match="predicted: expected None for loss 'ctc'"):
        transducer_loss(*inputs, options=panda_rnnt.LossOptions(loss="ctc"))


def test_unaligned_and_fortran_arrays_are_copied() -> None:
    inputs = arguments()
    expected = transducer_loss(*inputs).losses
    raw = np.frombuffer(b"x" + inputs[0].tobytes(), np.uint8)[1:].view(np.float64).reshape(inputs[0].shape)
    found = transducer_loss(raw, np.asfortranarray(inputs[1]), *inputs[2:]).losses
    np.testing.assert_array_equal(found, expected)


def test_torch_is_not_imported() -> None:
    program = "import panda_rnnt, panda_rnnt.numpy, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_parts_of_a_batch_need_no_copy() -> None:
    random = np.random.default_rng(1)
    logits = random.normal(size=(2, 4, 3, 5))
    targets = np.array([[1, 2], [3, 4]])
    lengths = np.array([[4, 2], [3, 1]])
    # Axes of size 1 have the strides of the whole batch.
    part = (logits[1:2, :3, :2], targets[1:2, :1], lengths[1:2, 0], lengths[1:2, 1])
    losses = rnnt_loss(logits, targets, lengths[:, 0], lengths[:, 1]).losses
    np.testing.assert_allclose(rnnt_loss(*part).losses, losses[1:])
