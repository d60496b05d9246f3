/* Takes contiguous memory as a camera's program does, and keeps it for a while.
 *
 *     contiguous DEVICE BUFFERS SECONDS
 *
 * Each buffer is a picture of 3840 x 2160 at 4 bytes, 31.6 MiB, which a device like `vivid` with
 * `allocators=1` takes from the kernel's contiguous area (CMA).  Fails unless all of them came.
 * The kernel's calls and their forms are those of linux/videodev2.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/videodev2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int fail(const char *what)
{
	fprintf(stderr, "contiguous: %s: %s\n", what, strerror(errno));
	return 1;
}

int main(int count, char **arguments)
{
	if (count != 4) {
		fprintf(stderr, "usage: contiguous DEVICE BUFFERS SECONDS\n");
		return 2;
	}
	const unsigned int wanted = strtoul(arguments[2], NULL, 10);
	const int device = open(arguments[1], O_RDWR);
	if (device < 0)
		return fail(arguments[1]);

	struct v4l2_format format = { .type = V4L2_BUF_TYPE_VIDEO_CAPTURE };
	format.fmt.pix.width = 3840;
	format.fmt.pix.height = 2160;
	format.fmt.pix.pixelformat = V4L2_PIX_FMT_XBGR32;
	if (ioctl(device, VIDIOC_S_FMT, &format) < 0)
		return fail("the format");

	struct v4l2_requestbuffers request = {
		.count = wanted,
		.type = V4L2_BUF_TYPE_VIDEO_CAPTURE,
		.memory = V4L2_MEMORY_MMAP,
	};
	if (ioctl(device, VIDIOC_REQBUFS, &request) < 0)
		return fail("no buffer");
	/* The kernel gives what it can and calls that well. */
	if (request.count < wanted) {
		fprintf(stderr, "contiguous: only %u of %u buffers of %u bytes\n",
			request.count, wanted, format.fmt.pix.sizeimage);
		return 1;
	}
	printf("%u buffers of %u bytes\n", request.count, format.fmt.pix.sizeimage);
	fflush(stdout);
	sleep(strtoul(arguments[3], NULL, 10));
	return 0;
}
