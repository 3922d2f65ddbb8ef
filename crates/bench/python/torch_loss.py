"""The step of `bench classes` in torch: tanh joint, linear layer, loss, forward and backward.

    pip install torch==2.4.0 torchaudio==2.4.0 "numpy<2"
    python crates/bench/python/torch_loss.py LOSS CLASSES [THREADS] [FRAMES LABELS HIDDEN BATCH]

LOSS is `torchaudio` (its rnnt_loss), `warp` (warp-transducer's algorithm in numba: pip install warprnnt-numba "numba<0.60"
too), `products` (forward and backward of the linear layer only: a lower bound of each dense loss) or `softmax` (the same with a
log-softmax: a lower bound of each loss on given log-probabilities).
"""
import resource, statistics, sys, time
import torch
loss, classes = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(int(sys.argv[3]) if len(sys.argv) > 3 else 2)
frames, labels, hidden, batch = map(int, sys.argv[4:8]) if len(sys.argv) > 4 else (100, 25, 512, 1)
torch.manual_seed(0)
enc = torch.randn(batch, frames, hidden, requires_grad=True)
pred = torch.randn(batch, labels + 1, hidden, requires_grad=True)
weight = (torch.randn(classes, hidden) * 0.05).requires_grad_()
bias = torch.zeros(classes, requires_grad=True)
targets = torch.randint(1, classes, (batch, labels), dtype=torch.int32)
lengths = torch.full((batch,), frames, dtype=torch.int32), torch.full((batch,), labels, dtype=torch.int32)
if loss == "torchaudio":
    from torchaudio.functional import rnnt_loss
    f = lambda z: rnnt_loss(z, targets, *lengths, blank=0, reduction="sum")
elif loss == "warp":
    from warprnnt_numba import RNNTLossNumba
    warp = RNNTLossNumba(blank=0, reduction="sum")
    f = lambda z: warp(z, targets, *lengths)
elif loss == "products":  # lower bound: linear layer, forward and backward
    f = lambda z: (z * 1e-3).sum()
elif loss == "softmax":  # lower bound: linear layer and log-softmax, forward and backward
    f = lambda z: z.log_softmax(-1)[..., 0].sum()
def step():
    for x in (enc, pred, weight, bias): x.grad = None
    z = torch.nn.functional.linear(torch.tanh(enc[:, :, None] + pred[:, None]), weight, bias)
    f(z).backward()
for x in (enc, pred, weight, bias): x.grad = torch.ones_like(x)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step()
peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
times = []
while sum(times) < 3 or len(times) < 3:
    t = time.perf_counter(); step(); times.append(time.perf_counter() - t)
print(f"{loss} C={classes}: median {1e3*statistics.median(times):.1f} ms min {1e3*min(times):.1f} ({len(times)} steps), peak {peak:.0f} MiB above start")
