package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// sector is what btrfs has one checksum for.
const sector = 4096

// Break takes sides away: every request to them fails from now on.
func (d Disk) Break(sides ...string) error {
	for _, s := range sides {
		i := slices.Index(Sides, s)
		if i < 0 {
			return fmt.Errorf("a mirror has no %s side", s)
		}
		dev, err := deviceOf(d.side(i))
		if err != nil {
			return err
		}
		if err := resize(dev, 512); err != nil {
			return err
		}
	}
	return nil
}

// Heal gives lost sides back, has every block repaired from the side that has it, and resets the counts of errors. It
// cannot heal a file system that gave up: that one is mounted anew.
func (d Disk) Heal(ctx context.Context) error {
	on, readOnly, err := d.mounted()
	switch {
	case err != nil:
		return err
	case !on:
		return fmt.Errorf("the mirror at %s is not mounted", d.At)
	}
	for i := range Sides {
		dev, err := deviceOf(d.side(i))
		if err != nil {
			return err
		}
		if lost(dev) {
			if err := resize(dev, 0); err != nil {
				return err
			}
		}
	}
	if readOnly {
		return nil
	}
	return d.Scrub(ctx)
}

// Scrub compares the sides, repairs what differs, and resets the counts of errors. A scrub reads what the last
// transaction of the file system has: files that were synced since are not among that, so one ends first.
func (d Disk) Scrub(ctx context.Context) error {
	if err := tool(ctx, "btrfs", "filesystem", "sync", d.At); err != nil {
		return err
	}
	if err := tool(ctx, "btrfs", "scrub", "start", "-B", d.At); err != nil {
		return err
	}
	return tool(ctx, "btrfs", "device", "stats", "-z", d.At)
}

// Flip changes a byte in each of the first blocks of a file, behind the file system's back: of every other block on the
// one side, of the rest on the other. Whichever side a reader asks, it meets a wrong block. It returns how many it
// changed.
func (d Disk) Flip(path string, most int) (changed int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return 0, err
	}
	wanted := [2][][]byte{}
	for i := 0; i < most; i++ {
		b := make([]byte, sector)
		if _, err := f.ReadAt(b, int64(i)*sector); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return 0, err
		}
		if !bytes.Equal(b, make([]byte, sector)) { // zeros are everywhere
			wanted[i%2] = append(wanted[i%2], b)
		}
	}
	for side, blocks := range wanted {
		n, err := flip(d.side(side), blocks)
		if changed += n; err != nil {
			return changed, err
		}
	}
	return changed, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // the next reader asks the disk
}

// flip changes a byte in each place of a side where one of the blocks is, and returns how many of them it met.
func flip(path string, blocks [][]byte) (met int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	seen := make([]bool, len(blocks))
	b := make([]byte, 1<<20)
	for at := int64(0); ; {
		at, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // nothing but a hole
			break
		}
		if err != nil {
			return met, err
		}
		at -= at % sector
		n, err := f.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return met, err
		}
		for off := 0; off+sector <= n; off += sector {
			i := slices.IndexFunc(blocks, func(w []byte) bool { return bytes.Equal(w, b[off:off+sector]) })
			if i < 0 {
				continue
			}
			if !seen[i] {
				met++
			}
			seen[i] = true
			if _, err := f.WriteAt([]byte{b[off+100] ^ 0xff}, at+int64(off)+100); err != nil {
				return met, err
			}
		}
		if n == 0 {
			break
		}
		at += int64(n)
	}
	return met, f.Sync()
}
