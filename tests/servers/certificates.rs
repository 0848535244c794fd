//! Certificates for one test: a root of its own, a server's and a client's.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::scratch::ScratchDir;

/// Certificates and keys as PEM files. Made by `openssl`, removed on drop.
#[derive(Debug)]
pub struct Certificates {
    dir: ScratchDir,
}

impl Certificates {
    /// A new root that nobody trusts, a server certificate for `localhost` and 127.0.0.1, and a
    /// client certificate.
    pub fn new() -> Self {
        let this = Self {
            dir: ScratchDir::new(),
        };
        this.make("root", &["basicConstraints=critical,CA:TRUE"], None);
        for (name, alternative) in [
            ("server", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            ("client", "subjectAltName=DNS:client"),
        ] {
            let extensions = ["basicConstraints=critical,CA:FALSE", alternative];
            this.make(name, &extensions, Some("root"));
        }
        this
    }

    /// The path of `<name>.pem`, for `root`, `server` and `client`.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.dir.path().join(name).with_extension("pem")
    }

    /// The path of `<name>.key`.
    pub fn key(&self, name: &str) -> PathBuf {
        self.dir.path().join(name).with_extension("key")
    }

    pub fn root_pem(&self) -> Vec<u8> {
        read(&self.certificate("root"))
    }

    pub fn client_pem(&self) -> Vec<u8> {
        read(&self.certificate("client"))
    }

    pub fn client_key(&self) -> Vec<u8> {
        read(&self.key("client"))
    }

    fn make(&self, name: &str, extensions: &[&str], issuer: Option<&str>) {
        let mut openssl = Command::new("openssl");
        openssl
            .args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj"])
            .arg(format!("/CN=tower-lock test {name}"))
            .arg("-keyout")
            .arg(self.key(name))
            .arg("-out")
            .arg(self.certificate(name));
        for extension in extensions {
            openssl.args(["-addext", extension]);
        }
        if let Some(issuer) = issuer {
            openssl.arg("-CA").arg(self.certificate(issuer));
            openssl.arg("-CAkey").arg(self.key(issuer));
        }
        match openssl.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => panic!("openssl: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => panic!("openssl ({error}): scripts/test installs it"),
        }
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
