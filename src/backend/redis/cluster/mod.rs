//! A Redis Cluster: a place for each master, found by the slot of a key.
//!
//! The map of slots comes from several nodes, and of their claims the newest counts: one node may
//! be cut off. It is read again when a node sends us elsewhere, when a place has no connection, and
//! now and then. Whoever waits in a slot that moved asks again where it is now, and whoever holds
//! renews there.
//!
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>

mod map;

use std::{
    collections::HashSet,
    sync::{Arc, RwLock},
    time::Duration,
};

use redis::Pipeline;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use self::map::Claim;
pub(super) use self::map::redirected;
use super::{
    client::Shared,
    connection::Connection,
    endpoint::Endpoint,
    place::{Place, Source},
    preflight,
    slots::SLOTS,
    trouble::Trouble,
    url::Address,
};
use crate::clock::jittered;

/// How often the map is read while all is well.
const LOOKS: Duration = Duration::from_secs(15);
/// The same while a place has no connection.
const SOON: Duration = Duration::from_millis(500);
/// The shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// How many nodes are asked at once.
const ASKED: usize = 8;

pub(super) struct Cluster {
    endpoint: Endpoint,
    seeds: Vec<Address>,
    map: RwLock<Map>,
    wanted: Notify,
}

#[derive(Default)]
struct Map {
    places: Vec<(Address, Arc<Place>)>,
    /// Empty before the first look.
    slots: Vec<Option<Arc<Place>>>,
}

impl Map {
    fn at(&self, address: &Address) -> Option<&Arc<Place>> {
        let mut places = self.places.iter();
        places.find(|(at, _)| at == address).map(|(_, place)| place)
    }
}

impl Cluster {
    pub(super) fn new(endpoint: Endpoint, seeds: Vec<Address>) -> Self {
        Self {
            endpoint,
            seeds,
            map: RwLock::default(),
            wanted: Notify::new(),
        }
    }

    pub(super) fn place(&self, slot: u16) -> Result<Arc<Place>, Trouble> {
        let map = self.map.read().unwrap_or_else(|e| e.into_inner());
        let place = map.slots.get(usize::from(slot)).cloned().flatten();
        place.ok_or_else(|| {
            self.look_again();
            Trouble::nowhere()
        })
    }

    /// A slot that this place has.
    pub(super) fn slot_at(&self, place: &Arc<Place>) -> Option<u16> {
        let map = self.map.read().unwrap_or_else(|e| e.into_inner());
        let is_it = |at: &Option<Arc<Place>>| at.as_ref().is_some_and(|at| Arc::ptr_eq(at, place));
        map.slots
            .iter()
            .position(is_it)
            .and_then(|slot| u16::try_from(slot).ok())
    }

    pub(super) fn places(&self) -> Vec<Arc<Place>> {
        let map = self.map.read().unwrap_or_else(|e| e.into_inner());
        map.places.iter().map(|(_, place)| place.clone()).collect()
    }

    /// A place at this address, also of a node that nobody has heard of yet.
    pub(super) fn place_at(
        &self,
        shared: &Arc<Shared>,
        address: &Address,
    ) -> Result<Arc<Place>, Trouble> {
        let mut map = self.map.write().unwrap_or_else(|e| e.into_inner());
        self.enter(&mut map, shared, address)
    }

    fn enter(
        &self,
        map: &mut Map,
        shared: &Arc<Shared>,
        address: &Address,
    ) -> Result<Arc<Place>, Trouble> {
        if let Some(place) = map.at(address) {
            return Ok(place.clone());
        }
        let client = self.endpoint.client_at(address)?;
        let place = Place::new(
            Source::Fixed(Box::new(client)),
            shared.timeout,
            shared.closed.child_token(),
        );
        place.start(shared);
        map.places.push((address.clone(), place.clone()));
        Ok(place)
    }

    /// A node says that another has this slot.
    pub(super) fn moved(&self, shared: &Arc<Shared>, slot: u16, to: &Address) {
        self.look_again();
        let mut map = self.map.write().unwrap_or_else(|e| e.into_inner());
        let Ok(place) = self.enter(&mut map, shared, to) else {
            return;
        };
        let Some(known) = map.slots.get_mut(usize::from(slot)) else {
            return;
        };
        if known
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, &place))
        {
            return;
        }
        *known = Some(place);
        drop(map);
        shared.slots_moved(&|moved| moved == slot);
    }

    /// The map may be old.
    pub(super) fn look_again(&self) {
        self.wanted.notify_one();
    }

    /// Keeps the map, for as long as it is polled.
    pub(super) async fn follow(&self, shared: &Arc<Shared>) {
        loop {
            let all_up = || {
                let places = self.places();
                places.iter().all(|place| place.lock_link.ready().is_some())
            };
            let next = Instant::now() + jittered(LOOKS);
            while Instant::now() < next {
                if timeout(jittered(SOON), self.wanted.notified())
                    .await
                    .is_ok()
                    || !all_up()
                {
                    break;
                }
            }
            // Where nobody answers, the map stays as it is.
            let _ = self.look(shared).await;
            sleep(PAUSE).await;
        }
    }

    /// Reads the map of as many nodes as answer.
    pub(super) async fn look(&self, shared: &Arc<Shared>) -> Result<(), Trouble> {
        let mut asking = JoinSet::new();
        for (address, at_hand) in self.candidates() {
            let client = self.endpoint.client_at(&address)?;
            let limit = shared.timeout;
            asking.spawn(async move {
                let connection = match at_hand {
                    Some(connection) => connection,
                    None => Arc::new(Connection::open(&client, limit, |_| {}).await?),
                };
                ask(&connection, &address, limit).await
            });
        }
        let (mut claims, mut worst) = (Vec::new(), None::<Trouble>);
        let mut answered = false;
        while let Some(result) = asking.join_next().await {
            match result {
                Ok(Ok(some)) => {
                    answered = true;
                    claims.extend(some);
                }
                Ok(Err(trouble)) if worst.as_ref().is_none_or(Trouble::may_pass) => {
                    worst = Some(trouble);
                }
                _ => {}
            }
        }
        if !answered {
            return Err(worst.unwrap_or_else(Trouble::no_answer));
        }
        self.apply(shared, claims)
    }

    fn candidates(&self) -> Vec<(Address, Option<Arc<Connection>>)> {
        let map = self.map.read().unwrap_or_else(|e| e.into_inner());
        let known = map.places.iter();
        let mut candidates: Vec<_> = known
            .map(|(address, place)| (address.clone(), place.lock_link.ready()))
            .collect();
        fastrand::shuffle(&mut candidates);
        // Those that answer at once, and others too: what is connected may be what is cut off.
        candidates.truncate(ASKED / 2);
        for seed in &self.seeds {
            if candidates.len() < ASKED && !candidates.iter().any(|(address, _)| address == seed) {
                candidates.push((seed.clone(), None));
            }
        }
        candidates
    }

    fn apply(&self, shared: &Arc<Shared>, claims: Vec<Claim>) -> Result<(), Trouble> {
        let masters = map::masters(claims);
        let mut map = self.map.write().unwrap_or_else(|e| e.into_inner());
        let mut slots = Vec::with_capacity(usize::from(SLOTS));
        // Most slots have the master of the one before.
        let mut last: Option<(&Address, Arc<Place>)> = None;
        for (slot, master) in masters.iter().enumerate() {
            let place = match master {
                // Nobody has it any more, or says so: better the place it had than none.
                None => map.slots.get(slot).cloned().flatten(),
                Some(master) => match &last {
                    Some((address, place)) if *address == master => Some(place.clone()),
                    _ => {
                        let place = self.enter(&mut map, shared, master)?;
                        last = Some((master, place.clone()));
                        Some(place)
                    }
                },
            };
            slots.push(place);
        }
        let is_same = |one: &Option<Arc<Place>>, other: &Option<Arc<Place>>| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        let moved: HashSet<u16> = (0..SLOTS)
            .filter(|&slot| {
                let slot = usize::from(slot);
                let before = map.slots.get(slot);
                before.is_some_and(|before| !is_same(before, &slots[slot]))
            })
            .collect();
        let used: HashSet<_> = slots.iter().flatten().map(Arc::as_ptr).collect();
        map.places.retain(|(_, place)| {
            let is_used = used.contains(&Arc::as_ptr(place));
            if !is_used {
                place.close();
            }
            is_used
        });
        map.slots = slots;
        drop(map);
        if !moved.is_empty() {
            shared.slots_moved(&|slot| moved.contains(&slot));
        }
        Ok(())
    }
}

async fn ask(
    connection: &Connection,
    address: &Address,
    limit: Duration,
) -> Result<Vec<Claim>, Trouble> {
    preflight::check_mode(connection, true)?;
    let mut questions = Pipeline::new();
    questions.cmd("CLUSTER").arg("SLOTS");
    questions.cmd("CLUSTER").arg("NODES");
    questions.ignore_errors();
    let answers = connection.ask_all(&questions, limit).await?;
    let [slots, nodes]: [_; 2] = answers.try_into().map_err(|_| Trouble::strange())?;
    map::read(address, &slots?, &nodes?)
}
