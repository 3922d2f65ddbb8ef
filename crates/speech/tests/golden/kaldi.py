"""Answers of kaldi-native-fbank for tests/suite/kaldi.rs: python3 kaldi.py > kaldi.json

The signal is a formula over integers, so that every language has the same samples. Options are those of sherpa-onnx
(FeatureExtractorConfig) and lhotse (FbankConfig): no dither, snip_edges=false, 20 Hz to 400 Hz below half the rate, samples within +-1.
"""
import importlib.metadata
import json

import kaldi_native_fbank as knf


def signal(count):
    """A saw whose pitch rises, noise of a linear congruential generator, digital silence in the middle."""
    samples, state = [], 1
    for n in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        value = (n * n // 8) % 4001 - 2000 + (state >> 22) - 512
        samples.append(0.0 if 1400 <= n < 2200 else value / 32768)
    return samples


def features(samples, rate):
    options = knf.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = False
    options.mel_opts.num_bins = 80
    options.mel_opts.low_freq = 20
    options.mel_opts.high_freq = -400
    fbank = knf.OnlineFbank(options)
    fbank.accept_waveform(rate, samples)
    fbank.input_finished()
    return [[float(f"{x:.6g}") for x in fbank.get_frame(t)] for t in range(fbank.num_frames_ready)]


cases = []
for rate, count in [(16000, 3333), (16000, 400), (16000, 100), (16000, 81)]:
    cases.append({"sample_rate": rate, "samples": count, "features": features(signal(count), rate)})
version = importlib.metadata.version("kaldi_native_fbank")
print(json.dumps({"source": "kaldi.py", "kaldi-native-fbank": version, "cases": cases}))
