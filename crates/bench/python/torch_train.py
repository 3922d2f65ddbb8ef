"""Compares the training step of `bench train` with torch: the RNN-T of MLPerf, with LAMB.

    pip install torch torchaudio
    cargo build --release
    python crates/bench/python/torch_train.py [THREADS] [ROUNDS] [BATCH ...]

The torch model has the layers of `bench train`: nn.LSTM with two biases (2 layers of 1,024, pairs of rows joined, 3 layers), an
embedding with a zero row for the start and 2 layers of 512, both projections, ReLU, dropout, the head, the loss of torchaudio (which
includes the log-softmax), and LAMB with the same clipping. The batch has the same sizes. A round runs one process of panda
(`bench case`, the process that `bench train` starts) and one of torch, each with 2 warm-up steps and then the measured steps. Prints
medians over all measured steps, and

    peak      largest resident set of the process after the model is created
    above     peak without the memory resident before the first step: weights, optimizer state, libraries
    import    resident set after importing torch
"""
import json, os, resource, statistics, subprocess, sys, time

STEPS = {4: 5, 16: 3}
WARM_UP = 2
ROWS, LABELS, TOKENS = 400, 60, 1023


def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024


def torch_child(threads, batch, steps):
    import torch

    torch.version.cuda = None  # without CUDA, the builds of torch and torchaudio need not match
    from torchaudio.functional import rnnt_loss

    torch.set_num_threads(threads)
    imported = status("VmRSS")
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lower = nn.LSTM(240, 1024, 2, dropout=0.1)
            self.upper = nn.LSTM(2048, 1024, 3, dropout=0.1)
            self.embedding = nn.Embedding(TOKENS, 512)
            self.predictor = nn.LSTM(512, 512, 2, dropout=0.3)
            self.frames, self.rows, self.head = nn.Linear(1024, 512), nn.Linear(512, 512), nn.Linear(512, TOKENS + 1)
            self.after_encoder, self.after_predictor, self.after_joint = nn.Dropout(0.1), nn.Dropout(0.3), nn.Dropout(0.3)

        def forward(self, x, labels):  # x: time, batch, 240
            x = self.after_encoder(self.lower(x)[0])
            time, batch, width = x.shape
            x = x.view(time // 2, 2, batch, width).transpose(1, 2).reshape(time // 2, batch, 2 * width)
            x = self.after_encoder(self.upper(x)[0])
            y = nn.functional.pad(self.embedding(labels.t()), (0, 0, 0, 0, 1, 0))
            y = self.after_predictor(self.predictor(y)[0])
            f, g = self.frames(x).transpose(0, 1), self.rows(y).transpose(0, 1)
            return self.head(self.after_joint(torch.relu(f[:, :, None] + g[:, None])))

    torch.manual_seed(0)
    model = Model()
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == 49_006_080
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def lamb(s, rate=0.007447, b1=0.9, b2=0.999, eps=1e-9, decay=1e-3):
        norm = torch.stack([p.grad.norm() for p in parameters]).norm().item()
        scale = 1 / max(1.0, norm)
        for p, m, v in zip(parameters, first, second):
            g = p.grad.mul_(scale)
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            u = (v / (1 - b2**s)).sqrt_().add_(eps)
            u = (m / (1 - b1**s)).div_(u).add_(p, alpha=decay)
            w, n = p.norm().item(), u.norm().item()
            p.add_(u, alpha=-rate * (w / n if w > 0 and n > 0 else 1.0))

    x = torch.randn(ROWS, batch, 240)
    labels = torch.randint(0, TOKENS, (batch, LABELS), dtype=torch.int32)
    lengths = torch.full((batch,), ROWS // 2, dtype=torch.int32), torch.full((batch,), LABELS, dtype=torch.int32)
    for p in first + second:
        p.zero_()  # makes the pages resident
    open("/proc/self/clear_refs", "w").write("5")
    start = status("VmRSS")
    times, parts = [], []
    for s in range(1, WARM_UP + steps + 1):
        at = [time.perf_counter()]
        for p in parameters:
            p.grad = None
        logits = model(x, labels)
        at.append(time.perf_counter())
        loss = rnnt_loss(logits, labels, *lengths, blank=TOKENS, reduction="mean")
        del logits
        at.append(time.perf_counter())
        loss.backward()
        at.append(time.perf_counter())
        lamb(s)
        at.append(time.perf_counter())
        if s > WARM_UP:
            times.append(1e3 * (at[-1] - at[0]))
            parts.append([1e3 * (b - a) for a, b in zip(at, at[1:])])
    a, b = torch.randn(2600, 512), torch.randn(512, 8192)
    peak = status("VmHWM")
    rates = []
    for _ in range(5):
        begin = time.perf_counter()
        a @ b
        rates.append(2 * 2600 * 512 * 8192 / (time.perf_counter() - begin) / 1e9)
    print(json.dumps(dict(times=times, parts=parts, peak=peak, above=peak - start, imported=imported,
                          sgemm=statistics.median(rates[1:]), loss=loss.item(), version=torch.__version__)))


def run_panda(threads, batch, steps):
    work = dict(batch=batch, rows=ROWS, labels=LABELS, tokens=TOKENS, widths=[1024, 512, 512])
    # Enough seconds for this number of steps.
    spec = dict(work=dict(Train=work), method=dict(Train=dict(ema=False)), threads=threads,
                seconds=steps * 0.25 * batch, gradients=None)
    program = os.environ.get("BENCH", os.path.join(os.path.dirname(__file__), "../../../target/release/bench"))
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    child = subprocess.Popen([program, "case", json.dumps(spec)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    answer = json.loads(child.stdout.read())
    child.stdin.close()
    child.wait()
    return answer


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for batch in [int(batch) for batch in sys.argv[3:]] or [4, 16]:
        steps = STEPS.get(batch, 3)
        panda_runs, torch_runs = [], []
        for _ in range(rounds):
            load = os.getloadavg()[0]
            panda_runs.append(run_panda(threads, batch, steps))
            run = [sys.executable, __file__, "--torch", str(threads), str(batch), str(steps)]
            torch_runs.append(json.loads(subprocess.run(run, stdout=subprocess.PIPE, check=True).stdout))
            a, b = statistics.median(panda_runs[-1]["milliseconds"]), statistics.median(torch_runs[-1]["times"])
            print(f"B={batch}: panda {a:.0f} ms, torch {b:.0f} ms, x {b / a:.2f}, load {load:.1f} before; sgemm panda "
                  f"{panda_runs[-1]['sgemm']:.0f}, torch {torch_runs[-1]['sgemm']:.0f} GFLOP/s", flush=True)
        a = statistics.median(t for m in panda_runs for t in m["milliseconds"])
        b = statistics.median(t for m in torch_runs for t in m["times"])
        resident = max(m["training"]["resident_bytes"] for m in panda_runs)
        above = max(m["peak_bytes"] for m in panda_runs)
        peak, over = max(m["peak"] for m in torch_runs), max(m["above"] for m in torch_runs)
        imported = torch_runs[0]["imported"]
        parts = [statistics.median(p) for p in zip(*(q for m in torch_runs for q in m["parts"]))]
        print(f"B={batch}: median panda {a:.0f} ms, torch {torch_runs[0]['version']} {b:.0f} ms: x {b / a:.2f}")
        print(f"B={batch}: peak MB panda {resident / 1e6:.0f}, torch {peak / 1e6:.0f} ({resident / peak:.0%}), without import "
              f"({imported / 1e6:.0f}) {(peak - imported) / 1e6:.0f} ({resident / (peak - imported):.0%}); above {above / 1e6:.0f} "
              f"and {over / 1e6:.0f} ({above / over:.0%})")
        print(f"B={batch}: parts of panda {panda_runs[0]['training']['parts']}")
        print(f"B={batch}: torch's network {parts[0]:.0f}, loss {parts[1]:.0f}, backward {parts[2]:.0f}, LAMB {parts[3]:.0f} ms", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--torch"]:
        torch_child(*map(int, sys.argv[2:5]))
    else:
        main()
