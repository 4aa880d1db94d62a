import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.uring.IoUring;
import io.netty.channel.uring.IoUringBufferRingConfig;
import io.netty.channel.uring.IoUringChannelOption;
import io.netty.channel.uring.IoUringFixedBufferRingAllocator;
import io.netty.channel.uring.IoUringIoHandler;
import io.netty.channel.uring.IoUringIoHandlerConfig;
import io.netty.channel.uring.IoUringServerSocketChannel;
import io.netty.channel.uring.IoUringSocketChannel;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Supplier;

/**
 * An echo server and its clients in one process: NettyEcho KIND CLIENTS MESSAGES SIZE. KIND is
 * plain, groups (the rings provide buffers), pieces (which are used up in pieces), or uncopied
 * (sends without a copy).
 */
public final class NettyEcho {
    private static final short GROUP = 5;
    private static int messages;
    private static int size;
    private static final AtomicLong bytes = new AtomicLong();
    private static final AtomicLong wrong = new AtomicLong();

    /** Sends back what comes. */
    private static final class Server extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            context.write(message);
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }
    }

    /** Sends a message when the one before has come back. */
    private static final class Client extends ChannelInboundHandlerAdapter {
        private final CountDownLatch left;
        private final Random sent = new Random(7);
        private final Random expected = new Random(7);
        private final byte[] next = new byte[size];
        private int at = size;
        private int received;

        Client(CountDownLatch left) {
            this.left = left;
        }

        private void send(ChannelHandlerContext context) {
            byte[] message = new byte[size];
            sent.nextBytes(message);
            context.writeAndFlush(Unpooled.wrappedBuffer(message));
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            send(context);
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf data = (ByteBuf) message;
            bytes.addAndGet(data.readableBytes());
            while (data.isReadable()) {
                if (at == size) {
                    expected.nextBytes(next);
                    at = 0;
                }
                if (data.readByte() != next[at++]) {
                    wrong.incrementAndGet();
                }
                if (at == size && ++received == messages) {
                    context.close();
                } else if (at == size) {
                    send(context);
                }
            }
            data.release();
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            left.countDown();
        }
    }

    private static ChannelInitializer<Channel> each(String kind, Supplier<ChannelHandler> handler) {
        return new ChannelInitializer<>() {
            @Override
            protected void initChannel(Channel channel) {
                if (kind.equals("groups") || kind.equals("pieces")) {
                    var group = IoUringChannelOption.IO_URING_BUFFER_GROUP_ID;
                    channel.config().setOption(group, GROUP);
                } else if (kind.equals("uncopied")) {
                    var least = IoUringChannelOption.IO_URING_WRITE_ZERO_COPY_THRESHOLD;
                    channel.config().setOption(least, 1);
                }
                channel.pipeline().addLast(handler.get());
            }
        };
    }

    private static IoUringIoHandlerConfig ring(String kind) {
        var config = new IoUringIoHandlerConfig();
        if (kind.equals("groups") || kind.equals("pieces")) {
            config.setBufferRingConfig(IoUringBufferRingConfig.builder().bufferGroupId(GROUP)
                .bufferRingSize((short) 16).batchSize(4).incremental(kind.equals("pieces"))
                .allocator(new IoUringFixedBufferRingAllocator(4096)).build());
        }
        return config;
    }

    public static void main(String[] arguments) throws Exception {
        String kind = arguments[0];
        int clients = Integer.parseInt(arguments[1]);
        messages = Integer.parseInt(arguments[2]);
        size = Integer.parseInt(arguments[3]);
        IoUring.ensureAvailability();
        var group = new MultiThreadIoEventLoopGroup(2, IoUringIoHandler.newFactory(ring(kind)));
        Channel server = new ServerBootstrap().group(group)
            .channel(IoUringServerSocketChannel.class).childHandler(each(kind, Server::new))
            .bind("127.0.0.1", 0).sync().channel();
        var left = new CountDownLatch(clients);
        long begin = System.nanoTime();
        for (int client = 0; client < clients; client++) {
            new Bootstrap().group(group).channel(IoUringSocketChannel.class)
                .handler(each(kind, () -> new Client(left))).connect(server.localAddress());
        }
        left.await(40, TimeUnit.SECONDS);
        double seconds = (System.nanoTime() - begin) / 1e9;
        long all = (long) clients * messages * size;
        System.out.printf("%d of %d bytes, %d wrong, %.0f echoes a second%n", bytes.get(), all,
            wrong.get(), (double) clients * messages / seconds);
        server.close().sync();
        group.shutdownGracefully(0, 1, TimeUnit.SECONDS).await(5, TimeUnit.SECONDS);
        System.exit(bytes.get() == all && wrong.get() == 0 ? 0 : 1);
    }
}
