//! Google's emulator, as a process of its own.

use std::path::Path;
use std::process::Command;

use tepui_bench::child::{Child, free_ports};
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::{Progress, Result};

/// Seconds that it may take to listen.
const START_SECONDS: u32 = 10;

/// The emulator; ended when dropped.
pub struct Emulator {
    child: Child,
    port: u16,
}

impl Emulator {
    /// Starts the program on a free port; what it says goes to a file in a directory that is there.
    pub fn start(program: &Path, dir: &Path, progress: &Progress) -> Result<Self> {
        let [port] = free_ports()?;
        let mut command = Command::new(program);
        command.args(["-host", "127.0.0.1", "-port", &port.to_string()]);
        let mut child = Child::start("Google's emulator", &mut command, &dir.join("emulator.log"))?;
        child.wait_for_port(port, START_SECONDS, progress)?;
        Ok(Self { child, port })
    }

    /// Where it listens.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Endpoint::parse(&format!("127.0.0.1:{}", self.port))
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}
