//! Who cleans up behind this process, however that ends: by a signal, by `kill -9`, or at its end
//! with servers in a `static`, which nothing drops.

use std::{
    fmt::Display,
    io::Write,
    process::{Child, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

/// Is told `+` and `-` with a pid or a directory, and when its standard input ends, which is when we
/// are gone, ends the processes and removes the directories that are left. What ends us from a
/// terminal reaches it too.
pub const HEIR: &str = r#"
trap '' HUP INT TERM
left=' '
while read -r what which; do
    case $what in
    +) left="$left$which " ;;
    -) case $left in *" $which "*) left="${left%% "$which" *} ${left#* "$which" }" ;; esac ;;
    esac
done
for one in $left; do
    case $one in /*) ;; *) kill -9 "$one" ;; esac
done
for one in $left; do
    case $one in /*) rm -rf "$one" ;; esac
done
"#;

/// A child process or a directory is there from now on.
pub(super) fn inherits(what: impl Display) {
    tell('+', what);
}

/// It is gone.
pub(super) fn loses(what: impl Display) {
    tell('-', what);
}

fn tell(how: char, what: impl Display) {
    static HEIR_OF_ALL: OnceLock<Mutex<Child>> = OnceLock::new();
    let heir = HEIR_OF_ALL.get_or_init(|| {
        let mut sh = Command::new("sh");
        sh.args(["-c", HEIR]).stdin(Stdio::piped());
        sh.stdout(Stdio::null()).stderr(Stdio::null());
        Mutex::new(sh.spawn().expect("sh is part of every system"))
    });
    let mut heir = heir.lock().unwrap_or_else(PoisonError::into_inner);
    let stdin = heir.stdin.as_mut().expect("it is piped");
    // In one piece; without the heir there is nothing to do better.
    let _ = stdin.write_all(format!("{how} {what}\n").as_bytes());
}
