#!/usr/bin/env python3
"""A small S3 server for tests: objects in memory, signatures verified, faults at random.

    server.py [--faults SHARE] [--seed N] [--refuse-part N]

Prints its port on a line and serves until its standard input ends. Verifies the SigV4 signature and the SHA-256 of
every body, as a store does, so that a client that signs wrongly or damages what it sends is refused. Of the
requests, SHARE (0 to 1) are answered wrongly, a fourth part each:

    dropped before anything is done           dropped after it was done, without a reply
    answered with 503 SlowDown, 500 or 429    answered half, or late

GET /---/stats has the counts of requests, faults and objects as JSON; GET /---/load?folder=F&prefix=BUCKET/KEY puts the
files of a folder into the store, and /---/save?folder=F&prefix=BUCKET/KEY writes the objects below a key to a folder. GET /---/lie/NAME=VALUE changes how it behaves from then on, with an empty VALUE back:

    down=TEXT     requests whose path has TEXT, and all that follow them, are dropped
    refuse=TEXT   requests whose path has TEXT are answered 403 AccessDenied
    hang=METHOD   such requests are never answered
    token=TOKEN   sessions with another token have expired
    expire=TEXT   with the first request whose path has TEXT, sessions with another token than "second" expire
    faults=SHARE  of requests from then on, in place of --faults
    list=short    lists have a key outside of the prefix
    list=empty    lists are pages without keys, without end
    list=same     lists are the same page again and again
"""
import argparse
import hashlib
import hmac
import json
import os
import random
import socketserver
import sys
import threading
import time
import urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from xml.sax.saxutils import escape

KEY, SECRET, TOKEN = "test-key", "test/secret+key", "test-token"


class Store:
    def __init__(self, faults, seed):
        self.lock = threading.Lock()
        self.objects = {}  # (bucket, key) -> (bytes, etag, seconds since 1970)
        self.uploads = {}  # id -> {"at": (bucket, key), "parts": {n: (bytes, etag)}}
        self.random = random.Random(seed)
        self.faults = faults
        self.lies = {}
        self.counts = {"requests": 0, "faults": 0, "refused": 0, "aborted": 0, "completed": 0, "bytes": 0}

    def draw(self):
        with self.lock:
            self.counts["requests"] += 1
            if self.random.random() >= float(self.lies.get("faults") or self.faults):
                return None
            self.counts["faults"] += 1
            return self.random.choice(["drop", "drop-after", "busy", "half", "late"])


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def signed(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    # ---- signatures ------------------------------------------------------------------------------------
    def check_signature(self, path, query, body):
        given = self.headers.get("Authorization", "")
        if not given.startswith("AWS4-HMAC-SHA256 "):
            return "AccessDenied", "no signature"
        parts = dict(p.strip().split("=", 1) for p in given[len("AWS4-HMAC-SHA256 "):].split(","))
        scope = parts["Credential"].split("/")
        if scope[0] != KEY:
            return "InvalidAccessKeyId", scope[0]
        digest = self.headers.get("x-amz-content-sha256", "")
        if digest != sha256(body):
            return "XAmzContentSHA256Mismatch", "the body is not what was signed"
        names = parts["SignedHeaders"].split(";")
        must = ["host", "x-amz-date"] + [n.lower() for n in self.headers if n.lower().startswith("x-amz-")]
        if any(n not in names for n in must):
            return "AccessDenied", "headers that are not signed: " + " ".join(set(must) - set(names))
        if any(n not in self.headers for n in names):
            return "AccessDenied", "signed headers that were not sent: " + " ".join(names)
        headers = "".join("%s:%s\n" % (n, " ".join(self.headers.get(n, "").split())) for n in names)
        pairs = sorted(tuple(p.split("=", 1)) if "=" in p else (p, "") for p in query.split("&") if p)
        if any(urllib.parse.quote(urllib.parse.unquote(v), safe="-._~") != v for _, v in pairs):
            return "AccessDenied", "a query that is not in canonical form"
        canonical = "\n".join([self.command, path, "&".join("%s=%s" % p for p in pairs), headers,
                               parts["SignedHeaders"], digest])
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], "/".join(scope[1:]),
                          sha256(canonical.encode())])
        key = ("AWS4" + SECRET).encode()
        for part in scope[1:]:
            key = signed(key, part)
        want = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        if want != parts["Signature"]:
            return "SignatureDoesNotMatch", "expected %s for\n%s" % (want, canonical)
        token, wanted = self.headers.get("x-amz-security-token"), self.server.store.lies.get("token")
        if wanted and token != wanted:
            return "ExpiredToken", "the token has expired"
        if token not in (None, wanted or TOKEN):
            return "InvalidToken", "an unknown token"
        return None

    # ---- replies ---------------------------------------------------------------------------------------
    def reply(self, status, body=b"", headers=(), head=False, half=False):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not head:
            self.wfile.write(body[:len(body) // 2] if half else body)
        if half:
            self.close_connection = True

    def fault(self, status, code, message="", **more):
        body = "<Error><Code>%s</Code><Message>%s</Message></Error>" % (code, escape(message))
        self.reply(status, body.encode(), **more)

    def tells_lie(self, name, path):
        text = self.server.store.lies.get(name)
        return bool(text) and text in path

    # ---- requests --------------------------------------------------------------------------------------
    def serve_request(self):
        store = self.server.store
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/---/stats":
            stats = dict(store.counts, objects=len(store.objects), uploads=len(store.uploads))
            return self.reply(200, json.dumps(stats).encode())
        if path.startswith("/---/lie/"):
            name, _, value = urllib.parse.unquote(path[len("/---/lie/"):]).partition("=")
            store.lies[name] = value
            return self.reply(200)
        if store.lies.get("hang") == self.command:
            store.counts["hung"] = store.counts.get("hung", 0) + 1
            time.sleep(3600)
        if self.tells_lie("expire", path):
            store.lies["token"] = "second"
        if store.lies.get("away") or self.tells_lie("down", path):
            store.lies["away"] = store.lies["down"]
            store.counts["requests"] += 1
            self.close_connection = True
            return None
        if path == "/---/load":
            return self.load_folder(**dict(urllib.parse.parse_qsl(query)))
        if path == "/---/save":
            return self.save_folder(**dict(urllib.parse.parse_qsl(query)))
        wrong = self.check_signature(path, query, body)
        if wrong:
            store.counts["refused"] += 1
            sys.stderr.write("%s %s: %s %s\n" % ((self.command, self.path) + wrong))
            return self.fault(400 if wrong[0] == "ExpiredToken" else 403, *wrong)
        if self.tells_lie("refuse", path):
            store.counts["requests"] += 1
            return self.fault(403, "AccessDenied", head=self.command == "HEAD")
        chance = store.draw()
        if chance == "drop":
            self.close_connection = True
            return None
        if chance == "busy":
            return self.fault(*store.random.choice([(503, "SlowDown"), (500, "InternalError"), (429, "TooMany")]))
        if chance == "late":
            time.sleep(store.random.random() * 0.2)
        with store.lock:
            status, reply, headers = self.carry_out(urllib.parse.unquote(path), query, body)
        if chance == "drop-after":
            self.close_connection = True
            return None
        if isinstance(reply, tuple):
            return self.fault(status, *reply, head=self.command == "HEAD")
        half = chance == "half" and len(reply) > 1 and self.command != "HEAD"
        return self.reply(status, reply, headers, head=self.command == "HEAD", half=half)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = serve_request

    def carry_out(self, path, query, body):
        store = self.server.store
        options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        bucket, _, key = path[1:].partition("/")
        if bucket == "missing":
            return 404, ("NoSuchBucket", bucket), ()
        if not key:
            return self.list_objects(bucket, options)
        if "uploads" in options or "uploadId" in options:
            return self.upload(bucket, key, options, body)
        if self.command == "PUT":
            etag = '"%s"' % hashlib.md5(body).hexdigest()
            store.objects[bucket, key] = (body, etag, time.time())
            return 200, b"", [("ETag", etag)]
        if self.command == "DELETE":
            store.objects.pop((bucket, key), None)
            return 204, b"", ()
        if (bucket, key) not in store.objects:
            return 404, ("NoSuchKey", key), ()
        data, etag, modified = store.objects[bucket, key]
        if self.headers.get("If-Match") not in (None, etag):
            return 412, ("PreconditionFailed", etag), ()
        headers = [("ETag", etag), ("Last-Modified", formatdate(modified, usegmt=True))]
        wanted = self.headers.get("Range")
        if self.command == "GET" and wanted:
            first, last = wanted[len("bytes="):].split("-")
            if int(first) >= len(data):
                return 416, ("InvalidRange", wanted), ()
            data = data[int(first):int(last) + 1]
        if self.command == "GET":
            store.counts["bytes"] += len(data)
        return (206 if wanted else 200), data, headers

    def load_folder(self, folder, prefix):
        bucket, _, key = prefix.partition("/")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as f:
                data = f.read()
            with self.server.store.lock:
                self.server.store.objects[bucket, key + "/" + name] = (data, '"%s"' % hashlib.md5(data).hexdigest(),
                                                                       time.time())
        return self.reply(200)

    def save_folder(self, folder, prefix):
        bucket, _, key = prefix.partition("/")
        with self.server.store.lock:
            found = {k[len(key) + 1:]: o[0] for (b, k), o in self.server.store.objects.items()
                     if b == bucket and k.startswith(key + "/")}
        for name, data in found.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(data)
        return self.reply(200)

    def list_objects(self, bucket, options):
        most = 7  # of a page, so that small tests have several
        prefix, after = options.get("prefix", ""), options.get("continuation-token", "")
        keys = sorted((k.encode(), k) for b, k in self.server.store.objects if b == bucket)
        keys = [k for raw, k in keys if k.startswith(prefix) and raw > after.encode()]
        lie = self.server.store.lies.get("list")
        if lie in ("empty", "same"):
            token = after + "x" if lie == "empty" else "x"
            return 200, ("<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%s"
                         "</NextContinuationToken></ListBucketResult>" % token).encode(), ()
        if lie == "short":
            return 200, (b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>1</Size>"
                         b"</Contents></ListBucketResult>"), ()
        body = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        body += "<Name>%s</Name><EncodingType>url</EncodingType>" % bucket
        body += "<IsTruncated>%s</IsTruncated>" % ("true" if len(keys) > most else "false")
        if len(keys) > most:
            body += "<NextContinuationToken>%s</NextContinuationToken>" % escape(keys[most - 1])
        for key in keys[:most]:
            data, etag, modified = self.server.store.objects[bucket, key]
            body += "<Contents><Key>%s</Key><LastModified>%s</LastModified>" % (
                urllib.parse.quote(key), time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(modified)))
            body += "<ETag>%s</ETag><Size>%d</Size><StorageClass>STANDARD</StorageClass></Contents>" % (
                escape(etag, {'"': "&quot;"}), len(data))
        return 200, (body + "</ListBucketResult>").encode(), ()

    def upload(self, bucket, key, options, body):
        store = self.server.store
        if "uploads" in options:
            name = "upload-%d+/=" % len(store.uploads)
            store.uploads[name] = {"at": (bucket, key), "parts": {}}
            return 200, ("<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>"
                         % name).encode(), ()
        found = store.uploads.get(options["uploadId"])
        if not found or found["at"] != (bucket, key):
            return 404, ("NoSuchUpload", options["uploadId"]), ()
        if self.command == "PUT" and int(options["partNumber"]) == self.server.refuse_part:
            return 400, ("InvalidPart", "refused"), ()
        if self.command == "PUT":
            etag = '"%s"' % hashlib.md5(body).hexdigest()
            found["parts"][int(options["partNumber"])] = (body, etag)
            return 200, b"", [("ETag", etag)]
        del store.uploads[options["uploadId"]]
        if self.command == "DELETE":
            store.counts["aborted"] += 1
            return 204, b"", ()
        parts = [found["parts"][n] for n in sorted(found["parts"])]
        if any(len(data) < 5 << 20 for data, _ in parts[:-1]):
            return 400, ("EntityTooSmall", "parts have at least 5 MiB"), ()
        if any(etag not in body.decode() for _, etag in parts):
            return 400, ("InvalidPart", "an ETag that is not the part's"), ()
        data = b"".join(data for data, _ in parts)
        etag = '"%s-%d"' % (hashlib.md5(b"".join(hashlib.md5(d).digest() for d, _ in parts)).hexdigest(), len(parts))
        store.objects[bucket, key] = (data, etag, time.time())
        store.counts["completed"] += 1
        return 200, ("<CompleteMultipartUploadResult><ETag>%s</ETag></CompleteMultipartUploadResult>"
                     % escape(etag, {'"': "&quot;"})).encode(), ()


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request, address):
        pass  # clients that went away


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--refuse-part", type=int, default=0, help="of every multipart upload")
    parser.add_argument("--address", default="127.0.0.1")
    options = parser.parse_args()
    server = Server((options.address, 0), Handler)
    server.store = Store(options.faults, options.seed)
    server.refuse_part = options.refuse_part
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


main()
