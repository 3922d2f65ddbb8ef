"""Compares training steps and best paths of `bench lattice` with LAST (jax).

    pip install last-asr
    cargo build --release
    python crates/bench/python/last_lattice.py [THREADS] [ROUNDS] [CONTEXT,BATCH ...]

V 32, H = E = F = 512, T 128, U 32, FrameDependent; all utterances have equal lengths. For each step, a round runs one process of panda
(`bench case`, the process that `bench lattice` starts) and one of LAST, which compiles before the measurement. Prints medians over the
measured steps of all rounds, their ratio, the largest resident set of each process, and the average number of cores that LAST used.
"""
import json, os, resource, statistics, subprocess, sys, time

FRAMES, LABELS, VOCABULARY, WIDTH = 128, 32, 32, 512
SECONDS = 3.0
STEPS = ["training step", "best path"]


def last_child(threads, step, context, batch):
    # jax may use another number of threads: a ratio is valid only if the printed number of cores is near THREADS.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=true"
    os.environ["NPROC"] = str(threads)
    import jax, jax.numpy as jnp, last

    states = sum(VOCABULARY**n for n in range(context + 1))
    lattice = last.RecognitionLattice(
        context=last.contexts.FullNGram(vocab_size=VOCABULARY, context_size=context),
        alignment=last.alignments.FrameDependent(),
        weight_fn_cacher_factory=lambda _: last.weight_fns.SharedEmbCacher(num_context_states=states, embedding_size=WIDTH),
        weight_fn_factory=lambda _: last.weight_fns.JointWeightFn(vocab_size=VOCABULARY, hidden_size=WIDTH))
    frames = jax.random.normal(jax.random.PRNGKey(1), (batch, FRAMES, WIDTH))
    labels = jax.random.randint(jax.random.PRNGKey(2), (batch, LABELS), 1, VOCABULARY + 1)
    counts = jnp.full((batch,), FRAMES), jnp.full((batch,), LABELS)
    parameters = jax.jit(lattice.init)(jax.random.PRNGKey(0), frames, counts[0], labels, counts[1])
    loss = lambda p, x: lattice.apply(p, x, counts[0], labels, counts[1]).sum()
    run = {"training step": jax.jit(jax.grad(loss, argnums=(0, 1))),
           "best path": jax.jit(lambda p, x: lattice.apply(p, x, counts[0], method=lattice.shortest_path))}[step]
    jax.block_until_ready(run(parameters, frames))
    jax.block_until_ready(run(parameters, frames))
    times, busy, begin = [], time.process_time(), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(run(parameters, frames))
        times.append(1e3 * (time.perf_counter() - start))
    cores = (time.process_time() - busy) / (time.perf_counter() - begin)
    print(json.dumps(dict(times=times, cores=cores, peak=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                          version=jax.__version__)))


def run_panda(threads, step, context, batch):
    work = dict(batch=batch, frames=FRAMES, labels=LABELS, context=context)
    method = "BestPath" if step == "best path" else dict(Panda=dict(budget="Recompute", skip=0.0))
    spec = dict(work=dict(Recognition=work), method=method, threads=threads, seconds=SECONDS, gradients=None)
    program = os.environ.get("BENCH", os.path.join(os.path.dirname(__file__), "../../../target/release/bench"))
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    child = subprocess.Popen([program, "case", json.dumps(spec)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    answer = json.loads(child.stdout.read())
    child.stdin.close()
    _, _, used = os.wait4(child.pid, 0)
    return dict(answer, peak=1024 * used.ru_maxrss)


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    cases = [tuple(map(int, case.split(","))) for case in sys.argv[3:]] or [(0, 1), (1, 1), (1, 16), (2, 1), (2, 16)]
    for context, batch in cases:
        for step in STEPS:
            panda_runs, last_runs = [], []
            for _ in range(rounds):
                panda_runs.append(run_panda(threads, step, context, batch))
                run = [sys.executable, __file__, "--last", str(threads), step, str(context), str(batch)]
                last_runs.append(json.loads(subprocess.run(run, stdout=subprocess.PIPE, check=True).stdout))
            a = statistics.median(t for m in panda_runs for t in m["milliseconds"])
            b = statistics.median(t for m in last_runs for t in m["times"])
            round_ratios = ", ".join(f"{statistics.median(t['times']) / statistics.median(m['milliseconds']):.2f}" for m, t in zip(panda_runs, last_runs))
            sgemm = statistics.median(m["sgemm"] for m in panda_runs)
            cores = statistics.median(t["cores"] for t in last_runs)
            memory = [max(m["peak"] for m in runs) / 2**20 for runs in (panda_runs, last_runs)]
            print(f"context {context}, B={batch}, {step}: panda {a:.2f} ms, LAST (jax {last_runs[0]['version']}) {b:.2f} ms, x {b / a:.2f} "
                  f"({round_ratios}); {memory[0]:.0f} and {memory[1]:.0f} MiB; sgemm {sgemm:.0f} GFLOP/s; LAST on {cores:.2f} cores", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--last"]:
        last_child(int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:6]))
    else:
        main()
