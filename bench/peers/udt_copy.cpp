// Copies one file over UDT 4: a peer to measure Sterna beside. Built by bench/peers/setup.sh against libudt.
//
//   udt_copy send [options] PORT FILE        waits for one receiver and sends FILE to it
//   udt_copy recv [options] HOST PORT FILE   connects, receives and writes FILE
//   options: --mss BYTES (default 1500)   --buffer BYTES (default 512000000)   --max-rate BITS_PER_SECOND (default none)
//
// Clear text, no verification: that is what UDT's own sendfile and recvfile do. The size goes ahead as 8 bytes in
// network order; the receiver answers one byte when it has written everything, so that the sender may close.

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <udt/udt.h>

namespace {

struct Options {
    int mss_bytes = 1500;
    int buffer_bytes = 512000000;
    int64_t max_rate_bits = 0;
    std::vector<std::string> words;
};

[[noreturn]] void die(const std::string& what) {
    std::fprintf(stderr, "udt_copy: %s\n", what.c_str());
    std::exit(1);
}

[[noreturn]] void die_of_udt(const std::string& what) {
    die(what + ": " + UDT::getlasterror().getErrorMessage());
}

Options read_options(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word.rfind("--", 0) != 0) {
            options.words.push_back(word);
            continue;
        }
        if (++i == argc) die(word + " needs a value");
        if (word == "--mss") options.mss_bytes = std::atoi(argv[i]);
        else if (word == "--buffer") options.buffer_bytes = std::atoi(argv[i]);
        else if (word == "--max-rate") options.max_rate_bits = std::atoll(argv[i]);
        else die("unknown option " + word);
    }
    return options;
}

void set_option(UDTSOCKET socket, UDT::SOCKOPT name, const void* value, int size, const char* what) {
    if (UDT::setsockopt(socket, 0, name, value, size) == UDT::ERROR) die_of_udt(std::string("set ") + what);
}

// A socket with the buffers of `options`. The flight window (UDT_FC) counts packets and must hold the buffer, or it
// caps the rate at its default of 25600 packets a round trip.
UDTSOCKET open_socket(const Options& options) {
    const UDTSOCKET socket = UDT::socket(AF_INET, SOCK_STREAM, 0);
    if (socket == UDT::INVALID_SOCK) die_of_udt("open a socket");
    const int window_packets = options.buffer_bytes / (options.mss_bytes - 28) + 1;
    set_option(socket, UDT_MSS, &options.mss_bytes, sizeof(int), "MSS");
    set_option(socket, UDT_FC, &window_packets, sizeof(int), "flight window");
    set_option(socket, UDT_SNDBUF, &options.buffer_bytes, sizeof(int), "send buffer");
    set_option(socket, UDT_RCVBUF, &options.buffer_bytes, sizeof(int), "receive buffer");
    // The UDP sockets beneath: as large as the kernel allows, which is where it clamps them.
    set_option(socket, UDP_SNDBUF, &options.buffer_bytes, sizeof(int), "UDP send buffer");
    set_option(socket, UDP_RCVBUF, &options.buffer_bytes, sizeof(int), "UDP receive buffer");
    if (options.max_rate_bits > 0) {
        const int64_t max_rate_bytes = options.max_rate_bits / 8;
        set_option(socket, UDT_MAXBW, &max_rate_bytes, sizeof(max_rate_bytes), "maximum bandwidth");
    }
    return socket;
}

void send_all(UDTSOCKET socket, const char* data, int size) {
    for (int done = 0; done < size;) {
        const int sent = UDT::send(socket, data + done, size - done, 0);
        if (sent == UDT::ERROR) die_of_udt("send");
        done += sent;
    }
}

void recv_all(UDTSOCKET socket, char* data, int size) {
    for (int done = 0; done < size;) {
        const int received = UDT::recv(socket, data + done, size - done, 0);
        if (received == UDT::ERROR) die_of_udt("receive");
        done += received;
    }
}

void send_file(const Options& options) {
    if (options.words.size() != 3) die("usage: udt_copy send [options] PORT FILE");
    const std::string& path = options.words[2];
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::atoi(options.words[1].c_str())));
    address.sin_addr.s_addr = INADDR_ANY;
    const UDTSOCKET listener = open_socket(options);
    if (UDT::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == UDT::ERROR) die_of_udt("bind");
    if (UDT::listen(listener, 1) == UDT::ERROR) die_of_udt("listen");
    std::printf("listening\n");
    std::fflush(stdout);

    sockaddr_in peer{};
    int peer_size = sizeof(peer);
    const UDTSOCKET socket = UDT::accept(listener, reinterpret_cast<sockaddr*>(&peer), &peer_size);
    if (socket == UDT::INVALID_SOCK) die_of_udt("accept");
    struct stat status{};
    if (stat(path.c_str(), &status) != 0) die("no such file: " + path);
    char size_wire[8];
    for (int i = 0; i < 8; ++i) size_wire[i] = static_cast<char>(status.st_size >> (56 - 8 * i));
    send_all(socket, size_wire, sizeof(size_wire));
    std::fstream file(path, std::ios::in | std::ios::binary);
    int64_t offset = 0;
    if (UDT::sendfile(socket, file, offset, status.st_size) == UDT::ERROR) die_of_udt("send the file");
    char answer = 0;
    recv_all(socket, &answer, 1);
    UDT::close(socket);
    UDT::close(listener);
}

void recv_file(const Options& options) {
    if (options.words.size() != 4) die("usage: udt_copy recv [options] HOST PORT FILE");
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(options.words[1].c_str(), options.words[2].c_str(), &hints, &found) != 0) die("unknown host");
    const UDTSOCKET socket = open_socket(options);
    if (UDT::connect(socket, found->ai_addr, static_cast<int>(found->ai_addrlen)) == UDT::ERROR) die_of_udt("connect");
    freeaddrinfo(found);
    char size_wire[8];
    recv_all(socket, size_wire, sizeof(size_wire));
    int64_t size_bytes = 0;
    for (const char byte : size_wire) size_bytes = size_bytes << 8 | static_cast<unsigned char>(byte);
    std::fstream file(options.words[3], std::ios::out | std::ios::binary | std::ios::trunc);
    if (!file) die("cannot write " + options.words[3]);
    int64_t offset = 0;
    if (UDT::recvfile(socket, file, offset, size_bytes) == UDT::ERROR) die_of_udt("receive the file");
    file.close();
    const char answer = 1;
    send_all(socket, &answer, 1);
    UDT::close(socket);
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = read_options(argc, argv);
    UDT::startup();
    if (!options.words.empty() && options.words[0] == "send") send_file(options);
    else if (!options.words.empty() && options.words[0] == "recv") recv_file(options);
    else die("usage: udt_copy send|recv …");
    UDT::cleanup();
    return 0;
}
