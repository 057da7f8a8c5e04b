package check

import (
	"strings"
	"testing"
)

func TestJudgeSettings(t *testing.T) {
	on := func(name, a, b, c string) []serverSetting {
		return []serverSetting{{"a", name, a, false}, {"b", name, b, false}, {"c", name, c, false}}
	}
	for _, tt := range []struct {
		all  []serverSetting
		want Level
		says string
	}{
		{nil, OK, ""},
		{on("max_connections", "200", "100", "200"), Problem, "less than the primary a stops replaying: b"},
		{on("max_connections", "100", "100", "200"), Warning, "max_connections differs: 100 on a, 100 on b, 200 on c"},
		{on("max_wal_senders", "20", "20", "9"), Problem, "stops replaying: c"},
		{on("work_mem", "4MB", "64MB", "4MB"), Warning, "work_mem differs"},
		{on("archive_command", "", "cp %p /a", ""), Warning, "nothing on a"},
		{on("shared_preload_libraries", "pg_stat_statements", "", "pg_stat_statements"), Problem, "once another replica leads"},
		{on("collation version of libc", "2.36", "2.36", "2.41"), Problem, "indexes on text"},
		{on("server_version", "15.18", "15.18", "15.17"), Warning, "the primary last"},
		{[]serverSetting{{"b", "max_connections", "100", true}}, Warning, "waits for a restart"},
	} {
		found := judgeSettings(tt.all, "a")
		text := ""
		for _, f := range found {
			text += f.What + " " + f.Why + " " + f.Run + "\n"
			if f.Run == "" {
				t.Errorf("%q: nothing to run", f.What)
			}
		}
		if Worst(found) != tt.want || !strings.Contains(text, tt.says) {
			t.Errorf("%v: %+v, want %s, %q", tt.all, found, tt.want, tt.says)
		}
	}
	if n := len(judgeSettings(append(on("a", "1", "2", "1"), on("b", "1", "1", "2")...), "a")); n != 2 {
		t.Errorf("%d findings of two settings", n)
	}
}
