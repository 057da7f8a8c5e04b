package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// architecture makes the files of one architecture.
func (r *release) architecture(ctx context.Context, work, arch string) error {
	stage := filepath.Join(work, arch)
	if err := os.CopyFS(stage, os.DirFS(filepath.Join(work, "common"))); err != nil {
		return err
	}
	program := filepath.Join(stage, "coterie")
	if err := r.build(ctx, program, arch); err != nil {
		return err
	}
	base := fmt.Sprintf("coterie_%s_linux_%s", r.version, arch)
	sbom, err := r.output(ctx, nil, "go", "run", "./scripts/sbom", program)
	if err != nil {
		return err
	}
	if err := put(filepath.Join(r.dist, base+".cdx.json"), sbom+"\n"); err != nil {
		return err
	}
	if err := r.tarball(stage, base); err != nil {
		return err
	}
	if r.nfpm == "" {
		return nil
	}
	template, err := os.ReadFile(filepath.Join(r.root, "packaging", "nfpm.yaml"))
	if err != nil {
		return err
	}
	config := filepath.Join(work, arch+".yaml")
	if err := put(config, r.fill(string(template), stage, arch)); err != nil {
		return err
	}
	for _, kind := range []string{"deb", "rpm"} {
		env := []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.date.Unix())}
		if _, err := r.output(ctx, env, r.nfpm, "package", "-f", config, "-p", kind, "-t", filepath.Join(r.dist, base+"."+kind)); err != nil {
			return err
		}
	}
	return nil
}

// fill fills the configuration of nfpm in.
func (r *release) fill(template, stage, arch string) string {
	return strings.NewReplacer("{ARCH}", arch, "{VERSION}", r.version, "{DATE}", r.date.Format(time.RFC3339), "{STAGE}", stage, "{ROOT}", r.root).Replace(template)
}

// tarball packs a directory, in the order of the names.
func (r *release) tarball(dir, base string) (err error) {
	f, err := os.Create(filepath.Join(r.dist, base+".tar.gz"))
	if err != nil {
		return err
	}
	gz := gzip.NewWriter(f)
	w := tar.NewWriter(gz)
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		text, err := fs.ReadFile(os.DirFS(dir), name)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if name == "coterie" {
			mode = 0o755
		}
		h := &tar.Header{Name: base + "/" + name, Mode: mode, Size: int64(len(text)), ModTime: r.date, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	for _, end := range []func() error{w.Close, gz.Close, f.Close} {
		if endErr := end(); err == nil {
			err = endErr
		}
	}
	return err
}

// squeeze compresses every file of a directory, as manual pages are.
func squeeze(dir string) error {
	pages, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range pages {
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var b strings.Builder
		gz, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err = gz.Write(text); err == nil {
			err = gz.Close()
		}
		if err == nil {
			err = put(path+".gz", b.String())
		}
		if err != nil {
			return err
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// sums writes SHA256SUMS, as sha256sum -c reads it, and lists what was made.
func (r *release) sums() error {
	files, err := os.ReadDir(r.dist)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range files {
		text, err := os.ReadFile(filepath.Join(r.dist, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		fmt.Fprintf(&b, "%s  %s\n", hex.EncodeToString(sum[:]), e.Name())
		_, _ = fmt.Fprintf(r.out, "%s  %d bytes\n", filepath.Join(r.dist, e.Name()), len(text))
	}
	return put(filepath.Join(r.dist, "SHA256SUMS"), b.String())
}
