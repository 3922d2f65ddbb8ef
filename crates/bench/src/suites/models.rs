//! Benchmark suites of models: greedy search, recognition lattices, training steps.
use super::{SuiteOptions, thousands};
use crate::case::{
    Case, CaseWork, DecodeWork, EncodeWork, EncoderFormat, Family, GreedyVariant, Method, Plan, PlotMark,
    RecognitionWork, TrainWork,
};
use crate::encode::FRAMES_PER_SECOND;

const DECODE_BATCHES: [usize; 4] = [1, 4, 16, 32];
const DECODE_QUICK: [usize; 2] = [1, 4];

/// Cases of the suite `decode`.
///
/// 32 utterances (quick 4) of 100 to 400 frames with an RNN-T and a TDT model.
pub(super) fn decode(options: &SuiteOptions) -> Plan {
    let (batches, utterances) =
        if options.quick { (&DECODE_QUICK[..], 4) } else { (&DECODE_BATCHES[..], 32) };
    let systems = [
        ("panda", GreedyVariant::LookAhead),
        ("panda-one-frame", GreedyVariant::OneFrame),
        ("panda-unprojected", GreedyVariant::Unprojected),
        ("frame-looping", GreedyVariant::FrameLooping),
    ];
    let case = |family: Family, batch: usize| Case {
        name: format!("{} B={batch}", family.name()),
        mark: Some(PlotMark { x: batch as f64, label: batch.to_string() }),
        work: CaseWork::Decode(DecodeWork { family, batch, utterances }),
        systems: systems.map(|(name, search)| options.system(name, Method::Decode(search))).to_vec(),
    };
    let cases = |family| batches.iter().map(move |&batch| case(family, batch));
    let cases = cases(Family::Rnnt).chain(cases(Family::Tdt)).collect();
    Plan { suite: "decode", title: "Greedy search", axis: "batch size", cases }
}

/// Cases of the suite `lattice`.
///
/// B = 1 and 16, 128 frames and 32 labels, contexts of 0, 1 and 2 labels.
/// Without `quick` also the configuration of table 2 of arXiv 2304.13134.
pub(super) fn lattice(options: &SuiteOptions) -> Plan {
    let small = (0..=2)
        .flat_map(|context| [1, 16].map(|batch| RecognitionWork { batch, frames: 128, labels: 32, context }));
    let paper = RecognitionWork { batch: 16, frames: 1024, labels: 256, context: 2 };
    let works = small.chain((!options.quick).then_some(paper));
    let systems = vec![
        options.panda(),
        options.panda_kept(),
        options.system("best-path", Method::BestPath),
        options.system("denominator", Method::Denominator),
    ];
    let case = |work: RecognitionWork| {
        let RecognitionWork { batch, frames, labels, context } = work;
        Case {
            name: format!("context {context}, B={batch}, {frames}x{labels}"),
            mark: Some(PlotMark { x: work.sites() as f64, label: thousands(work.sites()) }),
            work: CaseWork::Recognition(work),
            systems: systems.clone(),
        }
    };
    let cases = works.map(case).collect();
    Plan {
        suite: "lattice",
        title: "Recognition lattices, V = 32, H = 512",
        axis: "sites (context states x frames)",
        cases,
    }
}

/// Batch sizes; utterances have 400 rows of 3 frames, 200 encoder frames, 60 of 1,023 labels.
const TRAIN_BATCHES: [usize; 2] = [4, 16];

/// Cases of the suite `train`: 49 million parameters; quick: a small one with a batch of 4.
pub(super) fn train(options: &SuiteOptions) -> Plan {
    let full = |batch| TrainWork { batch, rows: 400, labels: 60, tokens: 1023, widths: [1024, 512, 512] };
    let small = TrainWork { batch: 4, rows: 40, labels: 6, tokens: 31, widths: [64, 32, 32] };
    let works = if options.quick { vec![small] } else { TRAIN_BATCHES.map(full).to_vec() };
    let systems = [("panda", false), ("panda-ema", true)];
    let case = |work: TrainWork| Case {
        name: format!("B={}", work.batch),
        mark: Some(PlotMark { x: work.batch as f64, label: work.batch.to_string() }),
        work: CaseWork::Train(work),
        systems: systems.map(|(name, ema)| options.system(name, Method::Train { ema })).to_vec(),
    };
    let cases = works.into_iter().map(case).collect();
    Plan { suite: "train", title: "Training, MLPerf's RNN-T", axis: "batch size", cases }
}

/// Cases of the suite `encoder`: encoders like those of public models, one or 16 utterances.
///
/// candle takes part in the shortest case only; quick: a small encoder.
pub(super) fn encoder(options: &SuiteOptions) -> Plan {
    let small = EncodeWork { layers: 2, width: 128, mels: 80, frames: 1000, batch: 1 };
    let medium = |batch, frames| EncodeWork { layers: 17, width: 512, mels: 80, frames, batch };
    let large = |batch, frames| EncodeWork { layers: 24, width: 1024, mels: 128, frames, batch };
    let works = match options.quick {
        true => vec![("small", small)],
        false => vec![
            ("110m", medium(1, 3000)),
            ("110m", medium(16, 3000)),
            ("110m", medium(1, 30_000)),
            ("0.6b", large(1, 3000)),
            ("0.6b", large(16, 3000)),
            ("0.6b", large(1, 30_000)),
        ],
    };
    let case = |(name, work): (&str, EncodeWork)| {
        let seconds = work.frames / FRAMES_PER_SECOND;
        let name = match work.batch {
            1 => format!("{name}, {seconds} s"),
            batch => format!("{name}, {batch} x {seconds} s"),
        };
        let formats = [
            ("panda", EncoderFormat::F32),
            ("panda-bf16", EncoderFormat::Bf16),
            ("panda-q8", EncoderFormat::Q8),
        ];
        let mut systems: Vec<_> =
            formats.into_iter().map(|(name, format)| (name, Method::Encode { format })).collect();
        if work.width <= 512 && work.frames <= 3000 && work.batch == 1 {
            systems.push(("candle", Method::Baseline));
        }
        Case {
            mark: Some(PlotMark { x: (work.batch * work.frames * work.width) as f64, label: name.clone() }),
            name,
            work: CaseWork::Encode(work),
            systems: systems.into_iter().map(|(name, method)| options.system(name, method)).collect(),
        }
    };
    let cases = works.into_iter().map(case).collect();
    Plan { suite: "encoder", title: "FastConformer encoders", axis: "model and utterance", cases }
}
