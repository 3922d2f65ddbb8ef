//! Tests of the reference losses: compared with each other and with other programs.

mod errors;
mod functions;
mod golden;
mod references;
