//! Tests that sessions and streams are `Send` and `Sync`.
use panda::{decoding, lattice, pruned, rnnt_loss, speech, training};

fn is_send_and_sync<T: Send + Sync>() {}

#[test]
fn sessions_and_streams_are_send_and_sync() {
    is_send_and_sync::<rnnt_loss::Session<f32>>();
    is_send_and_sync::<rnnt_loss::Session<f64>>();
    is_send_and_sync::<rnnt_loss::PendingLoss<f32>>();
    is_send_and_sync::<rnnt_loss::PendingLoss<f64>>();
    is_send_and_sync::<rnnt_loss::candle::LossSession>();
    is_send_and_sync::<lattice::LatticeSession<f32>>();
    is_send_and_sync::<lattice::LatticeSession<f64>>();
    is_send_and_sync::<lattice::PendingLosses<f32>>();
    is_send_and_sync::<lattice::PendingLosses<f64>>();
    is_send_and_sync::<lattice::BestPathStream<f32>>();
    is_send_and_sync::<lattice::LatticeBeamStream<f32, ()>>();
    is_send_and_sync::<pruned::Workspace<f32>>();
    is_send_and_sync::<decoding::DecodingModel>();
    is_send_and_sync::<decoding::GreedySearch>();
    is_send_and_sync::<decoding::GreedyStream>();
    is_send_and_sync::<decoding::BeamSearch>();
    is_send_and_sync::<decoding::BeamStream>();
    is_send_and_sync::<speech::FrontEnd>();
    is_send_and_sync::<speech::FeatureStream>();
    is_send_and_sync::<speech::Tokenizer>();
    is_send_and_sync::<recognizer::Recognizer>();
    is_send_and_sync::<recognizer::StreamingRecognizer>();
    is_send_and_sync::<recognizer::StreamingEncoder>();
    is_send_and_sync::<recognizer::ChunkedEncoder>();
    is_send_and_sync::<model::Model>();
    is_send_and_sync::<training::Error>();
}
