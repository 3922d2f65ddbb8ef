//! Tests that sessions, streams, models and errors are `Send` and `Sync`.
use panda::{decoding, lattice, pruned, rnnt_loss, speech, training};

fn assert_send_and_sync<T: Send + Sync>() {}

#[test]
fn sessions_and_streams_are_send_and_sync() {
    assert_send_and_sync::<rnnt_loss::Session<f32>>();
    assert_send_and_sync::<rnnt_loss::Session<f64>>();
    assert_send_and_sync::<rnnt_loss::PendingLoss<f32>>();
    assert_send_and_sync::<rnnt_loss::PendingLoss<f64>>();
    assert_send_and_sync::<rnnt_loss::candle::LossSession>();
    assert_send_and_sync::<lattice::LatticeSession<f32>>();
    assert_send_and_sync::<lattice::LatticeSession<f64>>();
    assert_send_and_sync::<lattice::PendingLosses<f32>>();
    assert_send_and_sync::<lattice::PendingLosses<f64>>();
    assert_send_and_sync::<lattice::BestPathStream<f32>>();
    assert_send_and_sync::<lattice::LatticeBeamStream<f32, ()>>();
    assert_send_and_sync::<pruned::Workspace<f32>>();
    assert_send_and_sync::<decoding::DecodingModel>();
    assert_send_and_sync::<decoding::GreedySearch>();
    assert_send_and_sync::<decoding::GreedyStream>();
    assert_send_and_sync::<decoding::BeamSearch>();
    assert_send_and_sync::<decoding::BeamStream>();
    assert_send_and_sync::<speech::FrontEnd>();
    assert_send_and_sync::<speech::FeatureStream>();
    assert_send_and_sync::<speech::Tokenizer>();
    assert_send_and_sync::<recognizer::Recognizer>();
    assert_send_and_sync::<recognizer::StreamingRecognizer>();
    assert_send_and_sync::<recognizer::StreamingEncoder>();
    assert_send_and_sync::<recognizer::ChunkedEncoder>();
    assert_send_and_sync::<model::Model>();
    assert_send_and_sync::<training::Error>();
}
