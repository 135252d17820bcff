"""Chromium, driven over its debugging protocol with the standard library alone.

    with Chrome("chromium") as chrome:
        page = chrome.open("http://127.0.0.1:8080/", width=1300, height=900)
        page.until("document.title === 'ingot'")
        page.value("1 + 1")
"""
import base64, json, os, shutil, socket, struct, subprocess, tempfile, time, urllib.request


class Socket:
    """A WebSocket to a page: texts out, texts in."""

    def __init__(self, url):
        host, path = url.removeprefix("ws://").split("/", 1)
        name, port = host.rsplit(":", 1)
        self.s = socket.create_connection((name, int(port)), timeout=120)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.s.recv(65536)
        self.buffer = self.buffer.split(b"\r\n\r\n", 1)[1]

    def take(self, n):
        while len(self.buffer) < n:
            got = self.s.recv(1 << 20)
            if not got:
                raise EOFError("the browser has ended")
            self.buffer += got
        out, self.buffer = self.buffer[:n], self.buffer[n:]
        return out

    def send(self, text):
        body, mask = text.encode(), os.urandom(4)
        n = len(body)
        size = struct.pack("!B", 0x80 | n) if n < 126 else struct.pack("!BH", 0xFE, n) if n < 65536 else struct.pack("!BQ", 0xFF, n)
        self.s.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(body)))

    def receive(self):
        text = b""
        while True:
            first, n = self.take(2)
            n &= 127
            if n == 126:
                n = struct.unpack("!H", self.take(2))[0]
            elif n == 127:
                n = struct.unpack("!Q", self.take(8))[0]
            part = self.take(n)
            if first & 15 in (0, 1):
                text += part
                if first & 128:
                    return text.decode()


class Page:
    def __init__(self, url):
        self.socket, self.n, self.complaints, self.requests = Socket(url), 0, [], []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def note(self, message):
        method, p = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
        if method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(p["args"]))
        if method == "Log.entryAdded" and p["entry"]["level"] == "error" and p["entry"]["source"] != "network":
            self.complaints.append(p["entry"]["text"])
        if method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])

    def call(self, method, **params):
        self.n += 1
        self.socket.send(json.dumps({"id": self.n, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.n:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def value(self, expression):
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise RuntimeError(expression + ": " + json.dumps(got["exceptionDetails"])[:600])
        return got["result"].get("value")

    def until(self, expression, seconds=60):
        """Waits until it holds; a page that is not loaded yet may throw."""
        deadline, why = time.time() + seconds, ""
        while True:
            try:
                if self.value(expression):
                    return
                why = self.value("document.body.innerText")[:1500]
            except RuntimeError as e:
                why = str(e)
            if time.time() > deadline:
                raise AssertionError(f"never true: {expression}: {why}")
            time.sleep(0.05)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, x0, y0, x1, y1, modifiers=0):
        more = {"button": "left", "buttons": 1, "clickCount": 1, "modifiers": modifiers}
        self.mouse("mouseMoved", x0, y0)
        self.mouse("mousePressed", x0, y0, **more)
        self.mouse("mouseMoved", (x0 + x1) / 2, (y0 + y1) / 2, **more)
        self.mouse("mouseMoved", x1, y1, **more)
        self.mouse("mouseReleased", x1, y1, **more)

    def key(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key)

    def shot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))


class Chrome:
    def __init__(self, program):
        self.folder = tempfile.mkdtemp()
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir=" + self.folder,
             "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = os.path.join(self.folder, "DevToolsActivePort")
        for _ in range(600):
            if os.path.exists(port_file) and open(port_file).read().count("\n"):
                break
            if self.process.poll() is not None:
                raise RuntimeError("Chromium ended")
            time.sleep(0.1)
        self.port = int(open(port_file).read().split()[0])

    def open(self, url, width=1300, height=1000):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT")
        page = Page(json.load(urllib.request.urlopen(request, timeout=60))["webSocketDebuggerUrl"])
        page.size(width, height)
        page.call("Page.navigate", url=url)
        return page

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
