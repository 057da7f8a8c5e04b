package metrics

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

// gather returns the metrics of the facts, checked against their definitions by Prometheus's own library.
func gather(t testing.TB, f Facts) []*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(func() Facts { return f }))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// flat returns the values by name and labels, as the text format writes them.
func flat(families map[string]*dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			var pairs []string
			for _, l := range m.GetLabel() {
				pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := name
			if len(pairs) > 0 {
				key += "{" + strings.Join(pairs, ",") + "}"
			}
			out[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetSummary().GetSampleSum()
		}
	}
	return out
}

// served returns what /metrics answers, read by Prometheus's own parser of the text format.
func served(t *testing.T, f Facts) map[string]float64 {
	t.Helper()
	rec := httptest.NewRecorder()
	Handler(func() Facts { return f }, slog.New(slog.DiscardHandler)).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if got := rec.Header().Get("Content-Type"); rec.Code != http.StatusOK || !strings.HasPrefix(got, "text/plain; version=0.0.4") {
		t.Fatalf("%d, %s", rec.Code, got)
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(rec.Body)
	if err != nil {
		t.Fatal(err)
	}
	return flat(families)
}

// TestEveryMetricIsDefinedAndSet holds that each definition has a value once everything is known, in its type, and that
// nothing else is served.
func TestEveryMetricIsDefinedAndSet(t *testing.T) {
	t.Parallel()
	defined := map[string]Definition{}
	for _, s := range Definitions() {
		for _, d := range s.Metrics {
			if _, twice := defined[d.Name]; twice {
				t.Errorf("%s is defined twice", d.Name)
			}
			defined[d.Name] = d
		}
	}
	set := map[string]bool{}
	for _, f := range gather(t, everything()) {
		d, ok := defined[f.GetName()]
		if !ok {
			t.Errorf("%s has no definition", f.GetName())
		}
		if got := strings.ToLower(f.GetType().String()); got != string(d.Kind) || f.GetHelp() != d.Help {
			t.Errorf("%s is a %s: %s", d.Name, got, f.GetHelp())
		}
		set[f.GetName()] = true
	}
	for name := range defined {
		if !set[name] {
			t.Errorf("%s is never set", name)
		}
	}
}

// TestNamesAndUnits holds the conventions of Prometheus by its own lint, and that the unit of a metric is the end of
// its name.
func TestNamesAndUnits(t *testing.T) {
	t.Parallel()
	problems, err := promlint.NewWithMetricFamilies(gather(t, everything())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	end := map[string]string{seconds: "_seconds", timestamp: "_timestamp_seconds", bytes: "_bytes", speed: "_bytes_per_second", ratio: "_ratio", percent: "_pct"}
	for _, s := range Definitions() {
		for _, d := range s.Metrics {
			name := strings.TrimSuffix(d.Name, "_total")
			if d.Kind == Counter && name == d.Name {
				t.Errorf("the counter %s does not end in _total: OpenMetrics would rename it", d.Name)
			}
			if !regexp.MustCompile(`^coterie_[a-z_]+$`).MatchString(d.Name) || !strings.HasSuffix(d.Help, ".") || strings.Contains(d.Help, "|") {
				t.Errorf("%s: %s", d.Name, d.Help)
			}
			if want, ok := end[d.Unit]; ok && !strings.HasSuffix(name, want) {
				t.Errorf("%s is in %s", d.Name, d.Unit)
			}
			for unit, e := range end {
				if strings.HasSuffix(name, e) && unit != d.Unit && !(unit == seconds && d.Unit == timestamp) {
					t.Errorf("%s is in %q, by its name in %s", d.Name, d.Unit, unit)
				}
			}
		}
	}
}

// TestValues holds the values of a primary that knows everything, as Prometheus reads them.
func TestValues(t *testing.T) {
	t.Parallel()
	m := served(t, everything())
	for name, want := range map[string]float64{
		`coterie_build_info{commit="abc",postgresql="16.4",version="1.2.3"}`: 1, "coterie_uptime_seconds": 60,
		`coterie_decision_transitions_total{rule="` + string(ag.Rules[3]) + `"}`: 3, `coterie_certificate_expiry_timestamp_seconds{certificate="node"}`: 99,
		"coterie_authority_rotation": 1, `coterie_disk_free_bytes{place="data"}`: 10,
		`coterie_storage_degraded{directory="/srv"}`: 1, `coterie_storage_device_errors{device="/dev/sda",directory="/srv",kind="read"}`: 2,
		`coterie_storage_resync_ratio{directory="/srv"}`: 0.25, `coterie_storage_resync_bytes_per_second{directory="/srv"}`: 1000,
		"coterie_log_rotations_total": 2, "coterie_http_refused_total": 3,
		`coterie_https_limit_reached_total{limit="sessions"}`: 3, "coterie_console_sessions_open": 2, "coterie_writable": 1, "coterie_commits_blocked": 1, "coterie_commits_blocked_seconds": 1.5,
		"coterie_automatic_failover_ready": 1, "coterie_failures_survivable": 1, `coterie_failure_survived{member="a"}`: 1, `coterie_failure_survived{member="c"}`: 0,
		`coterie_problems{severity="Critical"}`: 1, `coterie_problems{severity="Warning"}`: 2, "coterie_epoch": 7, "coterie_configurations_refused_total": 2, "coterie_operator_requests_refused_total": 4, "coterie_records_refused_total": 5, "coterie_quorum": 1, "coterie_quorum_voters": 3,
		`coterie_quorum_voter_up{member="w"}`: 1, "coterie_acknowledgements_required": 1, `coterie_failovers_total{kind="automatic",reason="died"}`: 2,
		"coterie_last_failover_outage_seconds": 0.9, "coterie_last_failover_timestamp_seconds": 1700.5, "coterie_primary": 1,
		`coterie_replica_role{replica="a",role="PRIMARY"}`: 1, `coterie_replica_role{replica="a",role="SECONDARY"}`: 0,
		`coterie_replica_synchronization_state{replica="b",state="SYNCHRONIZED"}`: 1, `coterie_replica_connected{replica="c"}`: 0,
		`coterie_replica_maintenance{replica="c"}`: 1, `coterie_replica_maintenance{replica="a"}`: 0, `coterie_replica_lag_bytes{replica="c"}`: 70,
		`coterie_replica_lag_bytes{replica="b"}`: 2, `coterie_replica_lag_seconds{replica="b"}`: 4, `coterie_replica_send_queue_bytes{replica="b"}`: 1,
		`coterie_replica_redo_queue_bytes{replica="b"}`: 3, `coterie_replica_redo_queue_bytes{replica="a"}`: 100, "coterie_lease_remaining_seconds": 4,
		"coterie_replay_bytes_per_second": 12, `coterie_slot_retained_bytes{slot="coterie_b"}`: 300, "coterie_commit_wait_seconds": 2,
		"coterie_settings_pending_restart": 2, "coterie_fences_total": 1, "coterie_backup_last_success_age_seconds": 3600, "coterie_archive_waiting_segments": 3, "coterie_archive_failures_total": 4, "coterie_archive_failing": 1, "coterie_archive_behind_seconds": 60, "coterie_archive_waiting_bytes": 48, "coterie_archive_full_in_seconds": 90, "coterie_last_fence_timestamp_seconds": 7, `coterie_seedings{state="FAILED"}`: 1,
		`coterie_seedings{state="COMPLETED"}`: 0, "coterie_seeding_done_bytes": 5, "coterie_sessions_open": 4,
		`coterie_sessions{intent="READ_WRITE",path="kernel",state="active"}`: 3, `coterie_sessions{intent="READ_ONLY",path="loop",state="idle"}`: 0,
		`coterie_sessions_carried_total{path="kernel"}`: 2, `coterie_sessions_carried_total{path="goroutines"}`: 0, "coterie_sessions_for_others": 1, "coterie_logins_total": 5, `coterie_refusals_total{sqlstate="53300"}`: 2, `coterie_refusals_total{sqlstate="28P01"}`: 0,
		`coterie_refusals_total{sqlstate="other"}`: 4, "coterie_routed_pct": 50, "coterie_routed_ratio": 0.75, "coterie_answers_held_total": 9,
		"coterie_answers_held_seconds_total": 1.5, `coterie_sessions_back_from_kernel_total{reason="cold"}`: 1, `coterie_backends_taken_total{from="ahead"}`: 1,
		"coterie_relayed_bytes_total": 3, `coterie_link_sent_bytes{peer="b"}`: 120, `coterie_link_compression_ratio{peer="b"}`: 2,
		`coterie_link_round_trip_seconds{peer="b"}`: 0.002, `coterie_link_loss_ratio{peer="b"}`: 0.05, `coterie_link_encode_seconds{peer="b"}`: 0.75,
		`coterie_link_codec{codec="zstd",peer="b"}`: 1,
	} {
		if got, ok := m[name]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	if _, ok := m[`coterie_replica_role{replica="w",role="SECONDARY"}`]; ok {
		t.Error("a witness has the role of a replica")
	}
}

// TestLittleIsKnown holds that a node leaves out what it does not know, instead of showing it as 0.
func TestLittleIsKnown(t *testing.T) {
	t.Parallel()
	m := served(t, Facts{Status: api.Status{Node: "w", Replicas: []api.Replica{{Name: "w", Role: ag.RoleResolving}}}})
	for name := range m {
		for _, never := range []string{"session", "link", "coterie_epoch", "coterie_quorum", "coterie_replica", "coterie_primary", "lease", "wal", "last_", "https", "routed"} {
			if strings.Contains(name, never) && !strings.HasPrefix(name, "coterie_console") {
				t.Errorf("a witness before its first turn has %s", name)
			}
		}
	}
	if m["coterie_writable"] != 0 || m["coterie_automatic_failover_ready"] != 0 || len(m) < 10 {
		t.Errorf("%v", m)
	}
	f := everything()
	f.Server.Answers, f.Server.Pending, f.Server.Seedings, f.Clients.LastMinute = false, nil, nil, nil
	m = served(t, f)
	for _, name := range []string{"coterie_commits_waiting", "coterie_settings_pending_restart", "coterie_seeding_done_bytes", "coterie_routed_pct", "coterie_routed_ratio"} {
		if v, ok := m[name]; ok {
			t.Errorf("%s is %v, and is not known", name, v)
		}
	}
}

// TestChangedFacts holds that the metrics are those of the moment.
func TestChangedFacts(t *testing.T) {
	t.Parallel()
	f := everything()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(func() Facts { return f }))
	now := func(name string) float64 {
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		by := map[string]*dto.MetricFamily{}
		for _, x := range families {
			by[x.GetName()] = x
		}
		return flat(by)[name]
	}
	for name, change := range map[string]func(){
		"coterie_writable": func() { f.Status.Availability.Writable = false },
		`coterie_replica_synchronization_state{replica="b",state="SYNCHRONIZED"}`: func() {
			f.Status.Replicas = slices.Clone(f.Status.Replicas)
			f.Status.Replicas[1].Sync = ag.Reverting
		},
		"coterie_lease_remaining_seconds": func() { f.Lease = nil },
		`coterie_failure_survived{member="a"}`: func() {
			f.Status.Availability.Failures = slices.Clone(f.Status.Availability.Failures)
			f.Status.Availability.Failures[0].Outcome = "STOPS"
		},
	} {
		before := now(name)
		change()
		if after := now(name); before == 0 || after != 0 {
			t.Errorf("%s was %v and is %v", name, before, after)
		}
	}
}

// TestOpenMetrics holds that OpenMetrics is served to those who ask for it, with the same names.
func TestOpenMetrics(t *testing.T) {
	t.Parallel()
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	rec := httptest.NewRecorder()
	Handler(everything, slog.New(slog.DiscardHandler)).ServeHTTP(rec, req)
	text := rec.Body.String()
	if got := rec.Header().Get("Content-Type"); !strings.HasPrefix(got, "application/openmetrics-text; version=1.0.0") || !strings.HasSuffix(text, "# EOF\n") {
		t.Fatalf("%s, ends with %q", got, text[max(0, len(text)-20):])
	}
	samples := map[string]bool{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			samples[line[:strings.IndexAny(line, " {")]] = true
		}
	}
	for _, s := range Definitions() {
		for _, d := range s.Metrics {
			name := d.Name
			if d.Kind == Summary {
				name += "_sum"
			}
			if !samples[name] {
				t.Errorf("OpenMetrics has no %s", name)
			}
			if !strings.Contains(text, "# HELP "+strings.TrimSuffix(d.Name, "_total")+" ") || !strings.Contains(text, "# TYPE "+strings.TrimSuffix(d.Name, "_total")+" ") {
				t.Errorf("OpenMetrics does not say what %s is", d.Name)
			}
		}
	}
}

// TestCardinalityIsBounded holds that no label has more values than a screen can show, whatever the parts count.
func TestCardinalityIsBounded(t *testing.T) {
	t.Parallel()
	f := everything()
	f.Clients.Rejected, f.Clients.Refused = map[string]uint64{}, map[string]uint64{}
	f.Server.Slots = nil
	total := uint64(0)
	for i := range 1000 {
		f.Clients.Rejected[fmt.Sprint("reason ", i)] = uint64(i)
		f.Clients.Refused[fmt.Sprint("X", i)] = 1
		f.Server.Slots = append(f.Server.Slots, Slot{Name: fmt.Sprint("slot\xff", i), Retained: int64(i)})
		total += uint64(i)
	}
	sum, byName := 0.0, map[string]int{}
	for _, fam := range gather(t, f) {
		byName[fam.GetName()] = len(fam.GetMetric())
		for _, m := range fam.GetMetric() {
			if fam.GetName() == "coterie_clients_rejected_total" {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	if byName["coterie_clients_rejected_total"] != maxValues || byName["coterie_slot_retained_bytes"] != maxValues || byName["coterie_refusals_total"] != len(coteriesOwn)+1 {
		t.Errorf("%v", byName)
	}
	if sum != float64(total) {
		t.Errorf("%v refusals in all, want %d", sum, total)
	}
	all := 0
	for _, n := range slices.Collect(maps.Values(byName)) {
		all += n
	}
	if all > 600 {
		t.Errorf("%d series", all)
	}
}

// TestManyAsk holds that the facts are gathered once for everybody who asks within a moment.
func TestManyAsk(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	h := Handler(func() Facts { asked.Add(1); return Facts{} }, slog.New(slog.DiscardHandler))
	began := time.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)) })
	}
	wg.Wait()
	if most := 1 + int64(time.Since(began)/factsFor); asked.Load() > most || asked.Load() == 0 {
		t.Errorf("asked %d times, at most %d times would do", asked.Load(), most)
	}
}
