"""The decoding of `bench decode` in torch: the same synthetic model, frames and labels.

    pip install torch==2.4.1 "numpy<2"
    python crates/bench/python/torch_decode.py [THREADS] [SECONDS] [BATCH ...]

Greedy search with both projections computed once, by label-looping (arXiv 2406.06220, algorithm 3, with masked rows) and, for a batch
of 1, one utterance at a time without masks. Times include the projection of the frames, as in `bench decode`. For each batch size,
prints the median over passes through 32 utterances, the number of labels, which must equal `labels` in the JSON of `bench decode`, and
a checksum.
"""
import statistics, sys, time
import numpy as np
import torch
import torch.nn.functional as F

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 3.0
batches = [int(batch) for batch in sys.argv[3:]] or [1, 4, 16, 32]
torch.set_num_threads(threads)
E, P, H, V, MS = 512, 640, 640, 1024, 2

# Weights and frames as in crates/bench/src/inputs.rs and decode/synthetic.rs.
def noise(purpose, count, scale):
    z = (np.uint64(purpose << 40) | np.arange(count, dtype=np.uint64)) + np.uint64(1)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    unit = (z >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)
    return np.float32(scale) * unit

def matrix(purpose, rows, columns, scale):
    return torch.from_numpy(noise(purpose, rows * columns, scale).reshape(rows, columns))

embedding = matrix(201, V + 1, P, 1.7)
embedding[V] = 0
w_ih, w_hh, bias = matrix(202, 4 * P, P, 0.06), matrix(203, 4 * P, P, 0.06), torch.from_numpy(noise(204, 4 * P, 0.06))
zero_bias = torch.zeros(4 * P)
enc_w, pred_w = matrix(205, H, E, 0.1), matrix(206, H, P, 0.15)
lengths = [100 + b * 97 % 301 for b in range(32)]
def rows(b, length):
    x = noise(300 + b, length * E, 1.7).reshape(length, E)
    for t in range(1, length):
        x[t] = np.float32(0.5) * x[t - 1] + np.float32(0.866) * x[t]
    return torch.from_numpy(x)
encoded = [rows(b, length) for b, length in enumerate(lengths)]

def head(durations):
    outputs = V + 1 + len(durations)
    b = torch.zeros(outputs)
    b[V] = 8.765 if durations else 11.225
    return matrix(207, outputs, H, 0.25), b

def start():
    zero = torch.zeros(1, P)
    h, c = torch.lstm_cell(embedding[V:], (zero, zero), w_ih, w_hh, bias, zero_bias)
    return h, c, h @ pred_w.T

def step(labels, h, c):
    h, c = torch.lstm_cell(embedding[labels], (h, c), w_ih, w_hh, bias, zero_bias)
    return h, c, h @ pred_w.T

def one_at_a_time(x, head, durations):
    w, b = head
    f = x @ enc_w.T
    h, c, g = start()
    t, n, emitted_labels = 0, 0, []
    while t < len(f):
        z = F.linear(torch.tanh(f[t : t + 1] + g), w, b)[0]
        k = int(z[: V + 1].argmax())
        d = durations[int(z[V + 1 :].argmax())] if durations else 0
        if k == V:
            t, n = t + max(d, 1), 0
            continue
        emitted_labels.append(k)
        h, c, g = step(torch.tensor([k]), h, c)
        n += 1
        if d == 0 and n >= MS:
            d = 1
        if d > 0:
            t, n = t + d, 0
    return [emitted_labels]

def label_looping(xs, head, durations):
    w, b = head
    size, longest = len(xs), max(map(len, xs))
    padded = torch.nn.utils.rnn.pad_sequence(xs, batch_first=True)
    f = (padded.view(-1, E) @ enc_w.T).view(size, longest, H)
    length = torch.tensor([len(x) for x in xs])
    values = torch.tensor(durations) if durations else None
    h, c, g = (x.expand(size, -1).clone() for x in start())
    utterances = torch.arange(size)
    t, n = torch.zeros(size, dtype=torch.long), torch.zeros(size, dtype=torch.long)
    last = torch.full((size,), -1)
    def best_classes():
        z = F.linear(torch.tanh(f[utterances, t.clamp(max=longest - 1).minimum(length - 1)] + g), w, b)
        k = z[:, : V + 1].argmax(-1)
        blank = k == V
        d = values[z[:, V + 1 :].argmax(-1)] if durations else torch.zeros_like(k)
        return k, torch.where(blank, d.clamp(min=1), d)
    emitted_labels = []
    active = t < length
    while active.any():
        was_active = active
        k, d = best_classes()
        at = t.clone()
        t = torch.where(active, t + d, t)
        active = t < length
        advance = active & (k == V)
        while advance.any():
            at = torch.where(advance, t, at)
            k2, d2 = best_classes()
            k, d = torch.where(advance, k2, k), torch.where(advance, d2, d)
            t = torch.where(advance, t + d2, t)
            active = t < length
            advance = active & (k == V)
        emitted = was_active & (k != V)
        emitted_labels.append(torch.where(emitted, k, -1))
        h2, c2, g2 = step(k, h, c)
        mask = emitted[:, None]
        h, c, g = torch.where(mask, h2, h), torch.where(mask, c2, c), torch.where(mask, g2, g)
        n = torch.where(emitted, torch.where(last == at, n + 1, 1), n)
        last = torch.where(emitted, at, last)
        t = t + (emitted & active & (n >= MS) & (last == t))
        active = t < length
    emitted_labels = torch.stack(emitted_labels, 1).tolist() if emitted_labels else [[]] * size
    return [[k for k in row if k >= 0] for row in emitted_labels]

def measure(decode, size, head, durations):
    times, labels = [], []
    while len(times) < 2 or sum(times[1:]) < seconds:
        begin = time.perf_counter()
        labels = []
        for first in range(0, 32, size):
            labels += decode(encoded[first : first + size], head, durations)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]), labels

def checksum(labels):
    total = 0
    for row in labels:
        for k in row:
            total = (total * 31 + k + 1) % 1_000_000_007
    return total

with torch.inference_mode():
    a, b = torch.randn(2600, 512), torch.randn(512, 8192)
    rates = []
    for _ in range(12):
        begin = time.perf_counter()
        a @ b
        rates.append(2 * 2600 * 512 * 8192 / (time.perf_counter() - begin) / 1e9)
    print(f"torch {torch.__version__}, {threads} threads, sgemm {statistics.median(rates[2:]):.0f} GFLOP/s", flush=True)
    for name, durations in ("RNN-T", []), ("TDT", [0, 1, 2, 3, 4]):
        weights = head(durations)
        for size in batches:
            searches = [("label-looping", label_looping)]
            if size == 1:
                searches.append(("one at a time", lambda xs, *arguments: one_at_a_time(xs[0], *arguments)))
            for search, decode in searches:
                duration, labels = measure(decode, size, weights, durations)
                count = sum(map(len, labels))
                print(
                    f"{name} B={size} {search}: {32 / duration:.1f} utterances/s, {count} labels, checksum {checksum(labels)}",
                    flush=True,
                )
