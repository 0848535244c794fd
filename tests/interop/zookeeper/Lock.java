// Curator's locks, driven by lines on standard input.
//
//     acquire PATH TTL_MS WAIT_MS    ok | busy      (the ttl is the session's)
//     release PATH                   ok | lost
//
// Arguments: HOSTS KIND, which is Mutex, Read or Write.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class Lock {
    public static void main(String[] args) throws Exception {
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(args[0], 4000, 4000, new ExponentialBackoffRetry(50, 5));
        client.start();
        client.blockUntilConnected();
        Map<String, InterProcessMutex> locks = new HashMap<>();
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            InterProcessMutex lock = locks.computeIfAbsent(words[1], path -> make(client, args[1], path));
            if (words[0].equals("acquire")) {
                boolean got = lock.acquire(Long.parseLong(words[3]), TimeUnit.MILLISECONDS);
                System.out.println(got ? "ok" : "busy");
            } else if (lock.isAcquiredInThisProcess()) {
                lock.release();
                System.out.println("ok");
            } else {
                System.out.println("lost");
            }
        }
    }

    private static InterProcessMutex make(CuratorFramework client, String kind, String path) {
        switch (kind) {
            case "Read":
                return new InterProcessReadWriteLock(client, path).readLock();
            case "Write":
                return new InterProcessReadWriteLock(client, path).writeLock();
            default:
                return new InterProcessMutex(client, path);
        }
    }
}
