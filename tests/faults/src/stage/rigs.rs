//! The processes of a run.

use std::{
    env, fs,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::Stage;
use crate::{
    history::{Event, Nanos, What, now},
    rig::{self, Load, Setup},
    servers::{Process, scratch::ScratchDir},
    storage::Storage,
};

/// How long a process may take to begin and to end. Only reached by failures.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many tasks a process may have when it does nothing: connections, and the like.
const IDLE: usize = 24;

/// Between two looks at who works.
const LOOK: Duration = Duration::from_millis(2);

/// Who was seen at the same work by so many looks, 60 ms or more, goes on for longer: others are
/// done. By the clock alone it might be one who has done nothing while the machine stood still.
const LOOKS: u32 = 30;

/// How long somebody who works for long is waited for.
const PATIENT_FOR_WORK: Duration = Duration::from_secs(5);

/// How often the harness says that it is awake.
const BEAT: Duration = Duration::from_millis(50);

/// All processes that there are and were, and what the harness itself knows of them.
pub(crate) struct Rigs {
    dir: ScratchDir,
    storage: Storage,
    load: Load,
    seed: u64,
    /// One in each place; `None` where it is gone.
    places: Vec<Option<Rig>>,
    started: u32,
    events: Vec<Event>,
    beats: Beats,
}

/// Writes down that the harness was awake.
struct Beats {
    events: Arc<Mutex<Vec<Event>>>,
    /// Dropped at the end.
    _end: Sender<()>,
}

impl Beats {
    fn begin() -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let (end, ended) = channel();
        thread::spawn({
            let events = events.clone();
            move || {
                while ended.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                    let (at, what) = (now(), What::Beat);
                    let event = Event { at, what };
                    events.lock().expect("no panic").push(event);
                }
            }
        });
        Self { events, _end: end }
    }
}

/// One process.
pub(crate) struct Rig {
    pub(crate) number: u32,
    process: Process,
}

impl Rigs {
    pub(crate) fn new(load: Load, places: usize, seed: u64) -> Self {
        // In memory: what is written there is written at once.
        let dir = ScratchDir::in_memory();
        let storage = Storage::serve(&dir.path().join("storage"));
        Self {
            dir,
            storage,
            load,
            seed,
            places: (0..places).map(|_| None).collect(),
            started: 0,
            events: Vec::new(),
            beats: Beats::begin(),
        }
    }

    /// Writes down what the harness does.
    pub(crate) fn note(&mut self, what: What) {
        self.note_at(now(), what);
    }

    /// The same, of what is known later.
    pub(crate) fn note_at(&mut self, at: Nanos, what: What) {
        self.events.push(Event { at, what });
    }

    pub(crate) fn number_at(&self, place: usize) -> Option<u32> {
        self.places[place].as_ref().map(|rig| rig.number)
    }

    /// The system's number of the process in this place.
    pub(crate) fn process_id_at(&self, place: usize) -> Option<u32> {
        self.places[place].as_ref().map(|rig| rig.process.id())
    }

    /// The place of the process that works on this key and has for so long, waited for; it began
    /// after this moment. `None` if there is none in time.
    pub(crate) fn at_work(&self, key: u32, since: Nanos) -> Option<usize> {
        let begun = Instant::now();
        let (mut seen, mut looks) = (None, 0);
        while begun.elapsed() < PATIENT_FOR_WORK {
            let works = self.storage.works_on(key).filter(|(_, at)| *at > since);
            looks = if works == seen { looks + 1 } else { 0 };
            seen = works;
            if let Some((process, _)) = works
                && looks >= LOOKS
                && let Some(place) = self.place_of(process)
            {
                return Some(place);
            }
            thread::sleep(LOOK);
        }
        None
    }

    fn place_of(&self, number: u32) -> Option<usize> {
        let of = |rig: &Option<Rig>| rig.as_ref().is_some_and(|rig| rig.number == number);
        self.places.iter().position(of)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Starts processes where there are none, and waits until they are ready.
    pub(crate) fn fill(&mut self, stage: &Stage) -> Result<(), String> {
        let mut new = Vec::new();
        for place in 0..self.places.len() {
            if self.places[place].is_none() {
                self.places[place] = Some(self.spawn(stage, place));
                new.push(place);
            }
        }
        for place in new {
            let rig = self.places[place].as_mut().expect("it was started");
            rig.says(rig::READY)?;
            let process = rig.number;
            self.note(What::Started { process });
        }
        Ok(())
    }

    fn spawn(&mut self, stage: &Stage, place: usize) -> Rig {
        let number = self.started;
        self.started += 1;
        let setup = Setup {
            process: number,
            seed: self.seed.wrapping_add(u64::from(number)),
            locks: stage.locks(place),
            ttl: stage.ttl,
            storage: self.dir.path().join("storage"),
            events: self.events_of(number),
            load: self.load,
        };
        let mut command = Command::new(env::current_exe().expect("we are a program"));
        command
            .arg("--rig")
            .arg(serde_json::to_string(&setup).expect("it is JSON"));
        if let Some(clock) = stage.client_clocks.get(place) {
            command.envs(clock.environment());
        }
        Rig {
            number,
            process: Process::spawn(&mut command, "it is this program"),
        }
    }

    fn events_of(&self, number: u32) -> PathBuf {
        self.dir.path().join(format!("{number}.jsonl"))
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, place: usize) {
        if let Some(mut rig) = self.places[place].take() {
            rig.process.kill();
            let process = rig.number;
            self.note(What::Killed { process });
        }
    }

    /// SIGSTOP.
    pub(crate) fn stop(&mut self, place: usize) {
        if let Some(rig) = &self.places[place] {
            let process = rig.number;
            // Before, and after below: what is written meanwhile counts as written by a process
            // that may be stopped.
            let what = What::Stopped { process };
            let at = now();
            rig.process.pause();
            self.events.push(Event { at, what });
        }
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self, place: usize) {
        if let Some(rig) = &self.places[place] {
            let process = rig.number;
            rig.process.resume();
            self.note(What::Continued { process });
        }
    }

    /// Tells a process.
    pub(crate) fn tell(&mut self, place: usize, line: &str) {
        if let Some(rig) = &mut self.places[place] {
            rig.process.send(line);
        }
    }

    /// Waits until a process says so.
    pub(crate) fn hear(&mut self, place: usize, word: &str) -> Result<(), String> {
        match &mut self.places[place] {
            Some(rig) => rig.says(word).map(drop),
            None => Ok(()),
        }
    }

    /// SIGTERM, and waits until it has ended well. What it said of that.
    pub(crate) fn drain(&mut self, place: usize) -> Result<String, String> {
        let mut rig = self.places[place].take().expect("a process is there");
        let process = rig.number;
        self.note(What::Drains { process });
        rig.process.terminate();
        let said = rig.says(rig::DRAINED)?;
        self.note(What::Drained { process });
        if rig.process.wait() {
            Ok(said)
        } else {
            Err(format!("process {process} did not end well"))
        }
    }

    /// Lets all of them end their attempts. What they say that they still have, if anything.
    pub(crate) fn rest(&mut self) -> Result<Vec<String>, String> {
        for rig in self.places.iter_mut().flatten() {
            rig.process.send("rest");
        }
        let mut left = Vec::new();
        for rig in self.places.iter_mut().flatten() {
            let said = rig.says(rig::RESTED)?;
            let tasks = said.rsplit('=').next().and_then(|text| text.parse().ok());
            let idle = tasks.is_some_and(|tasks: usize| tasks <= IDLE);
            if !said.contains("held=0 waiting=0 ") || !idle {
                left.push(format!("process {}: {said}", rig.number));
            }
        }
        Ok(left)
    }

    /// All events: those of all processes, of the storage, and our own.
    pub(crate) fn history(&self) -> Result<Vec<Event>, String> {
        let mut events = self.events.clone();
        events.extend(self.storage.events());
        events.extend(self.beats.events.lock().expect("no panic").iter().cloned());
        for number in 0..self.started {
            let path = self.events_of(number);
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                // Killed before it was ready.
                Err(_) => continue,
            };
            // The last line may not be whole, if it was killed.
            let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
            for line in whole.lines() {
                let event = serde_json::from_str(line);
                events.push(event.map_err(|error| format!("{}: {error}: {line}", path.display()))?);
            }
        }
        Ok(events)
    }
}

impl Rig {
    /// Waits until it says so; the whole line.
    fn says(&mut self, word: &str) -> Result<String, String> {
        let begun = Instant::now();
        while let Some(left) = PATIENCE.checked_sub(begun.elapsed()) {
            match self.process.line_within(left) {
                Some(line) if line.starts_with(word) => return Ok(line),
                Some(_) => {}
                None => break,
            }
        }
        let (number, log) = (self.number, self.process.log());
        Err(format!("process {number} does not say {word:?}:\n{log}"))
    }
}
