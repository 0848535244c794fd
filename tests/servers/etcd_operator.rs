//! What operators of etcd do, and what befalls them.

use super::{etcd::Etcd, process::Process, proxy::TcpProxy};

impl Etcd {
    /// Makes another member the leader.
    pub fn move_leader(&self, from: usize, to: usize) {
        let status = self.etcdctl_of(to, &["endpoint", "status", "-w", "fields"]);
        let id = status
            .lines()
            .find_map(|line| line.strip_prefix("\"MemberID\" : "))
            .expect("a member has a number");
        let id: u64 = id.trim().parse().expect("a number");
        self.etcdctl_of(from, &["move-leader", &format!("{id:x}")]);
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

    /// Cuts a member off from all others, in silence; clients still reach it.
    pub fn cut_off(&self, member: usize) {
        let others = || (0..self.members.len()).filter(|&other| other != member);
        let process = |n| self.with_process(n, Process::id);
        // Every two of them have connections that either of them began.
        self.link(member).cut(&others().map(process).collect::<Vec<_>>());
        others().for_each(|other| self.link(other).cut(&[process(member)]));
    }

    /// Ends what [`cut_off`](Self::cut_off) began. What was cut is opened anew.
    pub fn mend(&self) {
        (0..self.members.len()).for_each(|n| self.link(n).mend());
    }

    fn link(&self, n: usize) -> &TcpProxy {
        let link = self.members[n].link.as_ref();
        link.expect("cluster_with_links")
    }
}
