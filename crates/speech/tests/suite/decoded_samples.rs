//! Tests that `read_audio` returns the samples of independent encoders and decoders.
//!
//! Lossless formats must be exact, lossy ones within a tolerance.

use std::path::Path;
use std::process::Command;

use rayon::prelude::*;
use speech::{Channel, Conversion, Error, read_audio, read_audio_as};
use tempfile::tempdir;

use crate::encoded::{
    FORMATS, Format, RATE, SampleCheck, decode_independently, has_encoders, signal, write_inputs,
};

/// Compares a decoded file with the encoder's input and an independent decoder.
fn check_decoded(format: &Format, path: &Path, signal: &[i32]) -> Result<(), String> {
    let (channels, rate) = (format.channels(), format.rate());
    let conversion = Conversion { channel: Channel::Number(channels), resample: false };
    let audio = read_audio_as(path, rate, &conversion).map_err(|error: Error| error.to_string())?.0;
    let samples = &audio.samples;
    // The samples of the independent decoder.
    let decoded = if let SampleCheck::EqualToInput(_) = format.check {
        samples.clone()
    } else {
        let all = decode_independently(path, format.is_opus());
        all.into_iter().skip(channels as usize - 1).step_by(channels as usize).collect()
    };
    let (expected, tolerance) = match format.check {
        SampleCheck::EqualToReference(_) | SampleCheck::EqualToInput(_) => (signal.len(), 0.0),
        SampleCheck::CloseToReference(tolerance) => (decoded.len(), tolerance),
        SampleCheck::CloseWithoutPadding(tolerance) => {
            (signal.len() * rate as usize / RATE as usize, tolerance)
        }
    };
    // A copied Opus stream ends up to 3 samples earlier.
    if samples.len() != expected || decoded.len() + 3 < expected {
        let decoded = decoded.len();
        return Err(format!("{} samples, not {expected}; decoded independently: {decoded}", samples.len()));
    }
    // Compares with the independent decoder, then with the encoder's input.
    let differences = samples.iter().zip(&decoded).map(|(x, y)| (x - y).abs());
    let max_difference = differences.fold(0.0, f32::max);
    if max_difference > tolerance {
        return Err(format!("a difference of {max_difference}, more than {tolerance}"));
    }
    if let SampleCheck::EqualToReference(bits) | SampleCheck::EqualToInput(bits) = format.check {
        let step = 0.5f64.powi(bits.min(24) as i32 - 1);
        let differs = |(&x, &y): (&f32, &i32)| (f64::from(x) - f64::from(y) / 2_147_483_648.0).abs() > step;
        if let Some(index) = samples.iter().zip(signal).position(differs) {
            return Err(format!("sample {index}: {}, not that of the input", samples[index]));
        }
    }
    Ok(())
}

#[test]
fn every_format_has_the_samples_of_its_encoder() {
    if !has_encoders() {
        return;
    }
    // Lengths that are not multiples of any block size.
    let failures: Vec<String> = [21_937, 4801]
        .into_par_iter()
        .flat_map(|length| FORMATS.par_iter().map(move |format| (length, format)))
        .filter_map(|(length, format)| {
            let (folder, signal) = (tempdir().unwrap(), signal(length));
            write_inputs(folder.path(), &signal);
            format.encode(folder.path());
            let path = folder.path().join(format!("out.{}", format.ending));
            let failure = check_decoded(format, &path, &signal).err()?;
            Some(format!("{} of {length} samples: {failure}", format.name))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Encoders that write to a pipe cannot fill in the lengths.
#[test]
fn files_written_to_pipes_are_read_to_their_end() {
    if !has_encoders() {
        return;
    }
    let (folder, signal) = (tempdir().unwrap(), signal(4801));
    write_inputs(folder.path(), &signal);
    let commands = [
        "sox -D in.wav -t wav -",
        "sox -D in.wav -t aiff -",
        "sox -D in.wav -t aifc -",
        "sox -D in.wav -t flac -",
        "ffmpeg -v error -i in.wav -f wav -",
        "ffmpeg -v error -i in.wav -f aiff -",
        "ffmpeg -v error -i in.wav -f caf -",
        "ffmpeg -v error -i in.wav -f flac -",
        "ffmpeg -v error -i in.wav -f oga -",
        "ffmpeg -v error -i in.wav -c:a alac -f ismv -",
        "flac --silent --stdout in.wav",
    ];
    for command in commands {
        let line = format!("{command} | cat > out");
        let status = Command::new("sh").args(["-c", &line]).current_dir(folder.path()).status().unwrap();
        assert!(status.success(), "{line}");
        let audio = read_audio(&folder.path().join("out")).unwrap_or_else(|error| panic!("{line}: {error}"));
        let is_equal = |(&x, &y): (&f32, &i32)| x == (y >> 16) as f32 / 32768.0;
        assert!(
            audio.samples.len() == signal.len() && audio.samples.iter().zip(&signal).all(is_equal),
            "{line}"
        );
    }
}
