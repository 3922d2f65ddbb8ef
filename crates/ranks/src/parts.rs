//! A wire between processes that hold the classes of one head.
use std::error::Error;

use panda_core::Exchange;

use crate::{Courier, Wire};

impl<W: Wire + 'static> Exchange for Courier<W> {
    fn rank(&self) -> usize {
        Courier::rank(self)
    }

    fn count(&self) -> usize {
        Courier::count(self)
    }

    fn gather(&mut self, mine: &[f64], all: &mut [f64]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mine = mine.to_vec();
        let said = self.ask(move |wire| {
            let mut said = vec![0.0; wire.count() * mine.len()];
            wire.all_gather(bytemuck::cast_slice(&mine), bytemuck::cast_slice_mut(&mut said));
            said
        });
        all.copy_from_slice(&said);
        Ok(())
    }
}
