//! Tests that results do not depend on the number of threads.
use super::toy::Toy;
use super::{panda, run_command};

#[test]
fn checkpoints_do_not_depend_on_the_number_of_threads() {
    let toy = Toy::new();
    // Enough rows and sites for several blocks in every blocked loop.
    toy.recipe(&[
        ("epochs = 3", "epochs = 2"),
        ("stack = 4\nstride = 4\nlayers = 1\nhidden = 16", "stack = 2\nstride = 1\nlayers = 2\nhidden = 56"),
        ("max_utterances = 2", "max_utterances = 6"),
        ("max_frames = 200", "max_frames = 2000"),
    ]);
    let train = |threads: &str| {
        let mut command = panda(&toy.path(""), &["train", "recipe.toml", "--run", threads]);
        command.env("RAYON_NUM_THREADS", threads);
        let (code, _, err) = run_command(command);
        assert_eq!(code, Some(0), "{err}");
        ["last.safetensors", "evaluation.json", "test.hypotheses.jsonl"]
            .map(|name| std::fs::read(toy.path(threads).join(name)).unwrap())
    };
    let expected = train("1");
    assert!(expected == train("2"), "2 threads");
    assert!(expected == train("5"), "5 threads");
}
