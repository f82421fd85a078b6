//! Google's emulator, as a process of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tepui_bench::clock::pause;
use tepui_bench::counters::Process;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::{Error, Result};

/// How long it may take to listen, in looks.
const START_LOOKS: u32 = 100;
const START_LOOK: Duration = Duration::from_millis(100);

/// The emulator; ended when dropped.
pub struct Emulator {
    child: Child,
    endpoint: String,
}

impl Emulator {
    /// Starts the program on a free port.
    pub fn start(program: &Path) -> Result<Self> {
        let failed = |error| Error::failed(format!("{}: {error}", program.display()));
        // Free a moment ago; nobody else takes it within that moment on a machine that measures.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(failed)?;
        let child = Command::new(program)
            .args(["-host", "127.0.0.1", "-port", &free.port().to_string()])
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let mut emulator = Self { child, endpoint: free.to_string() };
        for _ in 0..START_LOOKS {
            if std::net::TcpStream::connect(free).is_ok() {
                return Ok(emulator);
            }
            if let Ok(Some(status)) = emulator.child.try_wait() {
                return Err(Error::failed(format!("{} ended with {status}", program.display())));
            }
            pause(START_LOOK);
        }
        Err(Error::failed(format!("{} does not listen", program.display())))
    }

    /// Where it listens.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Endpoint::parse(&self.endpoint)
    }

    /// Its process.
    pub fn process(&self) -> Process {
        Process(self.child.id())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
