//! What operators of etcd do, and what befalls them.

use super::{etcd::Etcd, patience::block_until, process::Process, proxy::TcpProxy};

impl Etcd {
    /// The member that leads, waited for: between two elections there is none.
    pub fn leader(&self) -> usize {
        block_until("a member leads", || {
            let mut running = (0..self.members.len()).filter(|&n| self.runs(n));
            running.find(|&n| {
                let leads = |status: String| {
                    let leader = status_field(&status, "Leader");
                    leader.is_some() && leader == status_field(&status, "MemberID")
                };
                self.status(n).is_some_and(leads)
            })
        })
    }

    /// Nothing where the member does not say.
    fn status(&self, n: usize) -> Option<String> {
        let mut command = self.etcdctl_command(n);
        command.args(["endpoint", "status", "-w", "fields"]);
        let output = command.output().expect("scripts/test installs etcdctl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    /// Makes another member the leader.
    pub fn move_leader(&self) {
        block_until("another member leads", || {
            let from = self.leader();
            let status = self.status((from + 1) % self.members.len())?;
            let id = status_field(&status, "MemberID").expect("a member has a number");
            let id: u64 = id.parse().expect("a number");
            let mut command = self.etcdctl_command(from);
            // Refused where it leads no more.
            let moved = command.args(["move-leader", &format!("{id:x}")]).output();
            moved.expect("it was there").status.success().then_some(())
        });
    }

    /// From now on the cluster refuses to write, as one whose database is full.
    pub fn raise_alarm(&self) {
        let asked = r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#;
        self.http(0, "POST /v3/maintenance/alarm", asked);
        assert!(self.etcdctl(&["alarm", "list"]).contains("NOSPACE"));
    }

    /// Ends what [`raise_alarm`](Self::raise_alarm) began.
    pub fn disarm_alarm(&self) {
        self.etcdctl(&["alarm", "disarm"]);
    }

    /// Cuts a member off from all others, in silence, and waits until these have a leader among
    /// them; clients still reach all.
    pub fn cut_off(&self, member: usize) {
        self.part_from(member, TcpProxy::cut, TcpProxy::cut);
    }

    /// Lets nothing of what a member sends reach the others, in silence; what they send arrives. Returns
    /// once they have a leader. To be [mended](Self::mend).
    pub fn mute(&self, member: usize) {
        self.part_from(member, TcpProxy::cut_down, TcpProxy::cut_up);
    }

    /// Every two of them have connections that either of them began: what is done to those to this
    /// member, and to those that it began.
    fn part_from(
        &self,
        member: usize,
        to_it: fn(&TcpProxy, &[u32]),
        from_it: fn(&TcpProxy, &[u32]),
    ) {
        let status = block_until("a member says who it is", || self.status(member));
        let id = status_field(&status, "MemberID").expect("a member has a number");
        let others = || (0..self.members.len()).filter(|&other| other != member);
        let process = |n| self.with_process(n, Process::id);
        let ids: Vec<_> = others().map(process).collect();
        to_it(self.link(member), &ids);
        others().for_each(|other| from_it(self.link(other), &[process(member)]));
        block_until("the others have a leader", || {
            let status = self.status(others().next()?)?;
            let leader = status_field(&status, "Leader")?;
            (leader != "0" && leader != id).then_some(())
        });
    }

    /// Ends what [`cut_off`](Self::cut_off) or [`mute`](Self::mute) began. What was cut is opened anew.
    pub fn mend(&self) {
        (0..self.members.len()).for_each(|n| self.link(n).mend());
    }

    fn link(&self, n: usize) -> &TcpProxy {
        let link = self.members[n].link.as_ref();
        link.expect("cluster_with_links")
    }
}

/// A field of what `etcdctl` tells of a member.
fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let name = format!("\"{name}\" : ");
    let value = status.lines().find_map(|line| line.strip_prefix(&name))?;
    Some(value.trim())
}
