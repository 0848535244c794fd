//! What operators of etcd do, and what befalls them.

use super::etcd::Etcd;

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
}
