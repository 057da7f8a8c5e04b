package units

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes writes a size for people.
func Bytes(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// ParseBytes reads 512MiB, 512MB and plain bytes. Less than least, in bytes, is an error.
func ParseBytes(s string, least int64) (int64, error) {
	digits := strings.TrimRight(s, "KMGTiBkb ")
	n, err := strconv.ParseFloat(digits, 64)
	units := map[string]float64{
		"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	}
	unit, ok := units[strings.TrimSpace(s[len(digits):])]
	if err != nil || !ok || !(n >= float64(least)/unit) || n*unit > 1<<50 {
		return 0, fmt.Errorf("write a number and KiB, MiB or GiB, at least %d MiB", least>>20)
	}
	return int64(n * unit), nil
}
