import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Threads of one client contend for Curator's InterProcessMutex: server, threads, warm-up ms, ms. */
public class CuratorLock {
    private static volatile boolean over = false;
    // Only the holder adds; the lock orders them, and a mutex makes that visible here.
    private static final List<long[]> GRANTS = Collections.synchronizedList(new ArrayList<>());

    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[1]);
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(args[0], 10000, 10000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        CountDownLatch done = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) {
            new Thread(() -> {
                try {
                    InterProcessMutex lock = new InterProcessMutex(client, "/curator-hot");
                    while (!over) {
                        lock.acquire();
                        long granted = System.nanoTime();
                        GRANTS.add(new long[] {granted, System.nanoTime()});
                        lock.release();
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                } finally {
                    done.countDown();
                }
            }).start();
        }
        Thread.sleep(Long.parseLong(args[2]));
        int first = GRANTS.size();
        long begun = System.nanoTime();
        Thread.sleep(Long.parseLong(args[3]));
        int last = GRANTS.size();
        double seconds = (System.nanoTime() - begun) / 1e9;
        over = true;
        done.await();
        List<Long> took = new ArrayList<>();
        for (int i = first + 1; i < last; i++) {
            took.add(GRANTS.get(i)[0] - GRANTS.get(i - 1)[1]);
        }
        Collections.sort(took);
        System.out.println((last - first) + " " + seconds + " " + took.get(took.size() / 2) / 1e3 + " "
            + took.get(took.size() * 99 / 100) / 1e3);
        System.exit(0);
    }
}
