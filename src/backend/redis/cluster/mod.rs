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
/// The same while a place has no connection, at first and after a while.
const SOON: Duration = Duration::from_millis(500);
const LATER: Duration = Duration::from_secs(5);
/// The shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// How many nodes are asked at once.
const ASKED: usize = 8;
/// How long a node without a slot is kept that was asked for one: it may be about to get it.
const KEPT: Duration = Duration::from_secs(30);

pub(super) struct Cluster {
    endpoint: Endpoint,
    seeds: Vec<Address>,
    map: RwLock<Map>,
    wanted: Notify,
}

#[derive(Default)]
struct Map {
    places: Vec<Node>,
    /// Empty before the first look.
    slots: Vec<Slot>,
}

struct Node {
    at: Address,
    place: Arc<Place>,
    /// When it was last needed for its address.
    named: Instant,
}

#[derive(Clone, Default)]
struct Slot {
    place: Option<Arc<Place>>,
    /// Of the newest claim to it.
    epoch: u64,
}

impl Slot {
    fn is_at(&self, place: &Arc<Place>) -> bool {
        self.place.as_ref().is_some_and(|at| Arc::ptr_eq(at, place))
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
        let slot = map.slots.get(usize::from(slot));
        slot.and_then(|slot| slot.place.clone()).ok_or_else(|| {
            self.look_again();
            Trouble::nowhere()
        })
    }

    /// Any slot that this place has.
    pub(super) fn slot_at(&self, place: &Arc<Place>) -> Option<u16> {
        let map = self.map.read().unwrap_or_else(|e| e.into_inner());
        let slots = (0..SLOTS).zip(&map.slots);
        let its = slots
            .filter(|(_, slot)| slot.is_at(place))
            .map(|(slot, _)| slot);
        fastrand::choice(its.collect::<Vec<_>>())
    }

    pub(super) fn places(&self) -> Vec<Arc<Place>> {
        let map = self.map.read().unwrap_or_else(|e| e.into_inner());
        map.places.iter().map(|node| node.place.clone()).collect()
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
        let named = Instant::now();
        if let Some(node) = map.places.iter_mut().find(|node| node.at == *address) {
            node.named = named;
            return Ok(node.place.clone());
        }
        let client = self.endpoint.client_at(address)?;
        let place = Place::new(
            Source::Fixed(Box::new(client)),
            shared.timeout,
            shared.closed.child_token(),
        );
        place.start(shared);
        map.places.push(Node {
            at: address.clone(),
            place: place.clone(),
            named,
        });
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
        if known.is_at(&place) {
            return;
        }
        known.place = Some(place);
        drop(map);
        shared.slots_moved(&|moved| moved == slot);
    }

    /// The map may be old.
    pub(super) fn look_again(&self) {
        self.wanted.notify_one();
    }

    /// Keeps the map, for as long as it is polled.
    pub(super) async fn follow(&self, shared: &Arc<Shared>) {
        let mut soon = SOON;
        loop {
            let next = Instant::now() + jittered(LOOKS);
            while Instant::now() < next {
                if timeout(jittered(soon), self.wanted.notified())
                    .await
                    .is_ok()
                {
                    break;
                }
                if !self.all_up() {
                    soon = (soon * 2).min(LATER);
                    break;
                }
                soon = SOON;
            }
            // Where nobody answers, the map stays as it is.
            let _ = self.look(shared).await;
            sleep(PAUSE).await;
        }
    }

    fn all_up(&self) -> bool {
        let places = self.places();
        places.iter().all(|place| place.lock_link.ready().is_some())
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
        let mut worst = None::<Trouble>;
        let (mut answered, mut all) = (false, Vec::new());
        while let Some(result) = asking.join_next().await {
            match result {
                // Each as it comes: who is away would delay what the others know.
                Ok(Ok(claims)) => {
                    answered = true;
                    all.extend(claims.iter().cloned());
                    self.apply(shared, claims, false)?;
                }
                Ok(Err(trouble)) if worst.as_ref().is_none_or(Trouble::may_pass) => {
                    worst = Some(trouble);
                }
                _ => {}
            }
        }
        match worst {
            // None of them knows of anything newer, so this is how it is.
            None => self.apply(shared, all, true),
            Some(_) if answered => Ok(()),
            Some(trouble) => Err(trouble),
        }
    }

    /// Nodes to ask: those that answer, and others where one is away, as what is connected may be
    /// what is cut off.
    fn candidates(&self) -> Vec<(Address, Option<Arc<Connection>>)> {
        let mut candidates: Vec<_> = {
            let map = self.map.read().unwrap_or_else(|e| e.into_inner());
            let known = map.places.iter();
            known
                .map(|node| (node.at.clone(), node.place.lock_link.ready()))
                .collect()
        };
        let needs_seeds = candidates.is_empty() || !self.all_up();
        fastrand::shuffle(&mut candidates);
        candidates.truncate(ASKED / 2);
        for seed in self.seeds.iter().filter(|_| needs_seeds) {
            if candidates.len() < ASKED && !candidates.iter().any(|(address, _)| address == seed) {
                candidates.push((seed.clone(), None));
            }
        }
        candidates
    }

    /// `all_agree`: an older claim counts too, as nobody makes a newer one.
    fn apply(
        &self,
        shared: &Arc<Shared>,
        claims: Vec<Claim>,
        all_agree: bool,
    ) -> Result<(), Trouble> {
        let masters = map::masters(&claims);
        let mut map = self.map.write().unwrap_or_else(|e| e.into_inner());
        map.slots.resize(usize::from(SLOTS), Slot::default());
        let mut moved = HashSet::new();
        // Most slots have the master of the one before.
        let mut last: Option<(&Address, Arc<Place>)> = None;
        for (slot, master) in (0..SLOTS).zip(&masters) {
            // Nobody claims it: better the place it had than none.
            let Some((epoch, master)) = *master else {
                continue;
            };
            if epoch < map.slots[usize::from(slot)].epoch && !all_agree {
                continue;
            }
            let place = match &last {
                Some((address, place)) if *address == master => place.clone(),
                _ => self.enter(&mut map, shared, master)?,
            };
            last = Some((master, place.clone()));
            let known = &mut map.slots[usize::from(slot)];
            known.epoch = epoch;
            if !known.is_at(&place) && known.place.replace(place).is_some() {
                moved.insert(slot);
            }
        }
        let used: HashSet<_> = map
            .slots
            .iter()
            .filter_map(|slot| slot.place.as_ref().map(Arc::as_ptr))
            .collect();
        map.places.retain(|node| {
            let is_used = used.contains(&Arc::as_ptr(&node.place)) || node.named.elapsed() < KEPT;
            if !is_used {
                node.place.close();
            }
            is_used
        });
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
