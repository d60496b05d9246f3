"""Serves 264.mkv and 265.mkv of a folder by RTSP, to who logs in by Digest; says its port."""

import sys, gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer

Gst.init(None)
token = GstRtspServer.RTSPToken()
token.set_string("media.factory.role", "me")
auth = GstRtspServer.RTSPAuth()
auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
auth.add_digest("me", "right", token)
server = GstRtspServer.RTSPServer(address="127.0.0.1", service="0")
server.set_auth(auth)
for codec in ("264", "265"):
    factory = GstRtspServer.RTSPMediaFactory()
    film = f"{sys.argv[1]}/{codec}.mkv"
    factory.set_launch(f"( filesrc location={film} ! matroskademux ! rtph{codec}pay name=pay0 pt=96 )")
    may = {"media.factory.access": True, "media.factory.construct": True}
    permissions = GstRtspServer.RTSPPermissions()
    for name, value in may.items():
        permissions.add_permission_for_role("me", name, value)
    factory.set_permissions(permissions)
    server.get_mount_points().add_factory(f"/{codec}", factory)
server.attach(None)
print(server.get_bound_port(), flush=True)
GLib.MainLoop().run()
