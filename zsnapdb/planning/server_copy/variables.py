"""The classes of global server variables.

The class of a variable decides whether a copy keeps the variable. If not, the class contains the reason.

Pure. Each variable is in exactly one class. A name in a list has precedence over a prefix. If a variable is not in a
list and has no known prefix, a copy keeps it, because it may change the effect of a statement.
`tests/unit/planning/server_copy/test_variables.py` compares the lists with the complete lists of recorded releases.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from enum import Enum


class VariableClass(Enum):
    """A class of variables. Its value is the reason why a copy keeps or leaves out the variables of the class."""

    KEPT = "the copy has the value of its source"
    STATEMENT = "the copy has the value of its source; a statement at startup sets it, because no option can"
    PLUGIN = "the copy has the value of its source if the copy loads the plugin"
    UNKNOWN = "not classified: the copy has the value of its source if its program knows the name"
    ENCRYPTION = "the copy has the value of its source if server.options loads the keys of the source"
    PATH = "paths on the source's host; the copy has its own paths"
    IDENTITY = "the identity of the source; the copy has its own"
    NETWORK = "the network of the source's host; zsnapdb sets the address and port of the copy"
    REPLICATION = "replication or a cluster; the copy replicates only if a command of zsnapdb sets this up"
    MEMORY = "memory, threads and devices of the source's host; set them in server.options"
    LOGGING = "logs and diagnostics of the source; set them in server.options"
    SCHEDULING = "automatic work, such as events and the removal of binlogs; set them when the copy goes into service"
    KEYS = "keys and TLS of the source; the copy has its own, or those in server.options"
    ACCESS = "access: they would refuse writes or users of the copy; set them when the copy goes into service"
    SECURITY = "security: they would open the sandbox, or run statements at startup"
    RECOVERY = "the startup and shutdown of a server; zsnapdb decides these for a copy"
    BUILD = "a fact about the server program or the host; no option sets it"
    STATE = "the state of a server or session, not a setting"

    @property
    def is_kept(self) -> bool:
        return self in _KEPT

    @property
    def is_setting(self) -> bool:
        """Whether an administrator sets the variables of this class."""
        return self not in (VariableClass.BUILD, VariableClass.STATE)


_KEPT = frozenset(
    {VariableClass.KEPT, VariableClass.STATEMENT, VariableClass.PLUGIN, VariableClass.UNKNOWN, VariableClass.ENCRYPTION}
)

NAMES: Mapping[VariableClass, str] = {
    VariableClass.KEPT: """
        activate_all_roles_on_login activate_mandatory_roles alter_algorithm analyze_max_length
        analyze_sample_percentage aria_block_size aria_checkpoint_interval aria_checkpoint_log_activity
        aria_force_start_after_recovery_failures aria_group_commit aria_group_commit_interval aria_log_file_size
        aria_log_purge_type aria_page_checksum aria_recover_options aria_stats_method aria_sync_log_dir
        authentication_policy auto_increment_increment auto_increment_offset autocommit automatic_sp_privileges
        avoid_temporal_upgrade binlog_alter_two_phase binlog_annotate_row_events binlog_checksum
        binlog_commit_wait_count binlog_commit_wait_usec binlog_direct_non_transactional_updates binlog_error_action
        binlog_format binlog_group_commit_sync_delay binlog_group_commit_sync_no_delay_count binlog_gtid_index
        binlog_gtid_index_page_size binlog_gtid_index_span_min binlog_gtid_simple_recovery
        binlog_large_commit_threshold binlog_legacy_event_pos binlog_max_flush_queue_time
        binlog_optimize_thread_scheduling binlog_order_commits binlog_row_event_max_size binlog_row_image
        binlog_row_metadata binlog_row_value_options binlog_rows_query_log_events binlog_transaction_compression
        binlog_transaction_compression_level_zstd binlog_transaction_dependency_history_size
        binlog_transaction_dependency_tracking block_encryption_mode caching_sha2_password_digest_rounds
        caching_sha2_password_enforce_storage_format caching_sha2_password_proxy_users
        caching_sha2_password_storage_format character_set_collations character_set_filesystem character_set_server
        check_proxy_users collation_server column_compression_threshold column_compression_zlib_level
        column_compression_zlib_strategy column_compression_zlib_wrap completion_type concurrent_insert
        cte_max_recursion_depth date_format datetime_format deadlock_search_depth_long deadlock_search_depth_short
        deadlock_timeout_long deadlock_timeout_short debug_no_thread_alarm default_authentication_plugin
        default_password_lifetime default_regex_flags default_storage_engine default_table_encryption
        default_tmp_storage_engine default_week_format delay_key_write delayed_insert_limit delayed_insert_timeout
        disabled_storage_engines disconnect_on_expired_password div_precision_increment enable_cascade_triggers
        enable_secondary_engine_statistics end_markers_in_json enforce_gtid_consistency enforce_storage_engine
        eq_range_index_dive_limit expensive_subquery_limit explain_format explain_json_format_version
        explicit_defaults_for_timestamp external_table_secondary_storage_engine external_table_storage_engine flush
        ft_boolean_syntax ft_max_word_len ft_min_word_len ft_query_expansion_limit generated_random_password_length
        group_concat_max_len gtid_domain_id gtid_mode gtid_strict_mode idle_readonly_transaction_timeout
        idle_transaction_timeout idle_write_transaction_timeout ignore_builtin_innodb ignore_db_dirs
        in_predicate_conversion_threshold information_schema_stats_expiry init_connect
        innodb_alter_copy_bulk innodb_api_bk_commit_interval innodb_api_disable_rowlock innodb_api_enable_binlog
        innodb_api_enable_mdl innodb_api_trx_level innodb_autoextend_increment innodb_autoinc_lock_mode
        innodb_background_scrub_data_check_interval innodb_background_scrub_data_compressed
        innodb_background_scrub_data_interval innodb_background_scrub_data_uncompressed
        innodb_change_buffer_max_size innodb_change_buffering innodb_checksum_algorithm innodb_checksums
        innodb_cmp_per_index_enabled innodb_compression_algorithm innodb_compression_default
        innodb_compression_failure_threshold_pct innodb_compression_level innodb_compression_pad_pct_max
        innodb_deadlock_detect innodb_default_row_format innodb_defragment innodb_defragment_fill_factor
        innodb_defragment_fill_factor_n_recs innodb_defragment_frequency innodb_defragment_n_pages
        innodb_defragment_stats_accuracy innodb_doublewrite innodb_extend_and_initialize
        innodb_file_format innodb_file_format_check innodb_file_format_max
        innodb_file_per_table innodb_fill_factor innodb_flush_log_at_timeout innodb_flush_log_at_trx_commit
        innodb_force_primary_key innodb_ft_enable_stopword innodb_ft_max_token_size innodb_ft_min_token_size
        innodb_ft_num_word_optimize innodb_ft_result_cache_limit innodb_ft_server_stopword_table
        innodb_ft_user_stopword_table innodb_immediate_scrub_data_uncompressed innodb_index_shrink
        innodb_instant_alter_column_allowed innodb_large_prefix innodb_lock_schedule_algorithm
        innodb_lock_wait_timeout innodb_locks_unsafe_for_binlog innodb_log_checksums innodb_log_compressed_pages
        innodb_log_file_size innodb_log_files_in_group innodb_log_optimize_ddl innodb_log_write_ahead_size
        innodb_max_undo_log_size innodb_native_foreign_keys innodb_optimize_fulltext_only innodb_page_size
        innodb_prefix_index_cluster_optimization innodb_read_only_compressed innodb_redo_log_capacity
        innodb_rollback_on_timeout innodb_rollback_segments innodb_segment_reserve_factor innodb_snapshot_isolation
        innodb_stats_auto_recalc innodb_stats_include_delete_marked innodb_stats_method
        innodb_stats_modified_counter innodb_stats_on_metadata innodb_stats_persistent
        innodb_stats_persistent_sample_pages innodb_stats_sample_pages innodb_stats_traditional
        innodb_stats_transient_sample_pages innodb_strict_mode innodb_support_xa innodb_table_locks
        innodb_undo_log_truncate innodb_undo_logs innodb_undo_tablespaces innodb_use_atomic_writes
        innodb_validate_tablespace_paths interactive_timeout internal_tmp_disk_storage_engine
        internal_tmp_mem_storage_engine join_cache_level keep_files_on_create lc_messages lc_time_names local_infile
        lock_wait_timeout log_bin_compress log_bin_compress_min_len log_bin_trust_function_creators
        log_bin_use_v1_row_events log_builtin_as_identified_by_password log_tc_size low_priority_updates
        lower_case_table_names mandatory_roles max_allowed_packet max_binlog_size max_error_count
        max_execution_time max_heap_table_size max_join_size max_length_for_sort_data max_points_in_geometry
        max_recursive_iterations max_rowid_filter_size max_seeks_for_key max_sort_length max_sp_recursion_depth
        max_statement_time max_user_connections max_write_lock_count metadata_locks_hash_instances
        mhnsw_default_distance mhnsw_default_m mhnsw_ef_search multi_range_count
        myisam_block_size myisam_data_pointer_size myisam_recover_options myisam_stats_method
        mysql56_temporal_format mysql_native_password_proxy_users new new_mode ngram_token_size note_verbosity old
        old_alter_table old_mode old_passwords parser_max_mem_size partial_revokes password_history
        password_require_current password_reuse_interval plugin_maturity print_identified_with_as_hex
        progress_report_time range_optimizer_max_mem_size regexp_stack_limit regexp_time_limit
        restrict_fk_on_non_standard_key secondary_engine_cost_threshold secure_auth secure_timestamp
        select_into_disk_sync select_into_disk_sync_delay session_track_gtids session_track_schema
        session_track_state_change session_track_system_variables session_track_transaction_info
        sha256_password_proxy_users show_compatibility_56 show_create_table_verbosity
        show_gipk_in_create_table_and_information_schema show_old_temporals skip_show_database
        sql_generate_invisible_primary_key sql_mode sql_require_primary_key standard_compliant_cte storage_engine
        strict_password_validation sync_binlog sync_frm system_versioning_alter_history
        system_versioning_insert_history table_encryption_privilege_check terminology_use_previous time_format
        time_zone transaction_isolation transaction_write_set_extraction tx_isolation updatable_views_with_limit
        use_stat_tables wait_timeout windowing_use_high_precision xa_detach_on_prepare
    """,
    VariableClass.STATEMENT: """
        character_set_client character_set_connection character_set_results check_constraint_checks
        collation_connection default_collation_for_utf8mb4 foreign_key_checks sql_auto_is_null sql_big_selects
        sql_buffer_result sql_if_exists sql_notes sql_quote_show_create sql_safe_updates sql_select_limit
        sql_warnings unique_checks
    """,
    VariableClass.PLUGIN: """
        rewriter_enabled rewriter_enabled_for_threads_without_privilege_checks rewriter_verbose
    """,
    VariableClass.ENCRYPTION: """
        aria_encrypt_tables binlog_encryption encrypt_binlog encrypt_tmp_disk_tables encrypt_tmp_files
        innodb_default_encryption_key_id innodb_encrypt_log innodb_encrypt_tables innodb_encrypt_temporary_tables
        innodb_encryption_rotate_key_age innodb_encryption_rotation_iops innodb_encryption_threads
        innodb_redo_log_encrypt innodb_undo_log_encrypt
    """,
    VariableClass.PATH: """
        aria_log_dir_path basedir character_sets_dir datadir ft_stopword_file general_log_file
        innodb_buffer_pool_filename innodb_data_file_path innodb_data_home_dir innodb_directories
        innodb_doublewrite_dir innodb_log_group_home_dir innodb_redo_log_archive_dirs innodb_temp_data_file_path
        innodb_temp_tablespaces_dir innodb_tmpdir innodb_undo_directory lc_messages_dir log_bin log_bin_index
        log_error pid_file plugin_dir relay_log relay_log_index relay_log_info_file replica_load_tmpdir
        slave_load_tmpdir slow_query_log_file socket sql_error_log_filename server_audit_file_path tmpdir
        validate_password_dictionary_file validate_password.dictionary_file
    """,
    VariableClass.IDENTITY: "hostname server_id server_id_bits server_uid server_uuid",
    VariableClass.NETWORK: """
        admin_address admin_port back_log bind_address connect_timeout create_admin_listener_thread
        extra_max_connections extra_port max_connect_errors max_password_errors net_buffer_length net_read_timeout
        net_retry_count net_write_timeout port protocol_compression_algorithms proxy_protocol_networks redirect_url
        skip_name_resolve skip_networking
    """,
    VariableClass.REPLICATION: """
        binlog_do_db binlog_ignore_db default_master_connection gtid_cleanup_batch_size
        gtid_executed_compression_period gtid_ignore_duplicates gtid_pos_auto_engines init_replica init_slave
        log_replica_updates log_slave_updates master_info_repository master_verify_checksum max_relay_log_size
        read_binlog_speed_limit relay_log_info_repository relay_log_purge relay_log_recovery relay_log_space_limit
        replication_optimize_for_static_plugin_config replication_sender_observe_commit_only rpl_read_size
        rpl_stop_replica_timeout rpl_stop_slave_timeout skip_replica_start skip_slave_start source_verify_checksum
        sync_master_info sync_relay_log sync_relay_log_info sync_source_info
    """,
    VariableClass.MEMORY: """
        aria_max_sort_file_size aria_repair_threads aria_sort_buffer_size big_tables binlog_cache_size
        binlog_file_cache_size binlog_stmt_cache_size bulk_insert_buffer_size connection_memory_chunk_size
        connection_memory_limit connection_memory_status_limit container_aware delayed_queue_size
        global_connection_memory_limit global_connection_memory_status_limit global_connection_memory_tracking
        histogram_generation_max_mem_size host_cache_size innodb_adaptive_flushing innodb_adaptive_flushing_lwm
        innodb_adaptive_hash_index innodb_adaptive_hash_index_cells innodb_adaptive_hash_index_parts
        innodb_adaptive_max_sleep_delay innodb_commit_concurrency innodb_concurrency_tickets
        innodb_data_file_buffering innodb_data_file_write_through innodb_ddl_buffer_size innodb_ddl_threads
        innodb_dedicated_server innodb_disable_sort_file_cache innodb_doublewrite_batch_size
        innodb_doublewrite_files innodb_doublewrite_pages innodb_fatal_semaphore_wait_threshold innodb_flush_method
        innodb_flush_neighbors innodb_flush_sync innodb_flushing_avg_loops innodb_fsync_threshold
        innodb_ft_cache_size innodb_ft_sort_pll_degree innodb_ft_total_cache_size innodb_idle_flush_pct
        innodb_io_capacity innodb_io_capacity_max innodb_linux_aio innodb_log_buffer_size innodb_log_file_buffering
        innodb_log_file_mmap innodb_log_file_write_through innodb_log_spin_cpu_abs_lwm innodb_log_spin_cpu_pct_hwm
        innodb_log_spin_wait_delay innodb_log_wait_for_flush_spin_hwm innodb_log_writer_threads
        innodb_lru_flush_size innodb_lru_scan_depth innodb_max_dirty_pages_pct innodb_max_dirty_pages_pct_lwm
        innodb_max_purge_lag innodb_max_purge_lag_delay innodb_max_purge_lag_wait innodb_numa_interleave
        innodb_old_blocks_pct innodb_old_blocks_time innodb_online_alter_log_max_size innodb_open_files
        innodb_page_cleaners innodb_parallel_read_threads innodb_purge_batch_size
        innodb_purge_rseg_truncate_frequency innodb_purge_threads innodb_random_read_ahead
        innodb_read_ahead_threshold innodb_read_io_threads innodb_replication_delay innodb_sort_buffer_size
        innodb_spin_wait_delay innodb_spin_wait_pause_multiplier innodb_sync_array_size innodb_sync_spin_loops
        innodb_thread_concurrency innodb_thread_sleep_delay innodb_use_fdatasync innodb_use_native_aio
        innodb_write_io_threads join_buffer_size join_buffer_space_limit large_pages locked_in_memory
        max_binlog_cache_size max_binlog_stmt_cache_size max_connections max_digest_length max_prepared_stmt_count
        max_session_mem_used max_tmp_session_space_usage max_tmp_total_space_usage max_tmp_tables
        max_delayed_threads max_insert_delayed_threads metadata_locks_cache_size mhnsw_max_cache_size mrr_buffer_size
        myisam_max_sort_file_size myisam_mmap_size myisam_repair_threads myisam_sort_buffer_size myisam_use_mmap
        open_files_limit performance_schema preload_buffer_size query_alloc_block_size query_prealloc_size
        range_alloc_block_size read_buffer_size read_rnd_buffer_size rowid_merge_buff_size schema_definition_cache
        select_into_buffer_size server_memory set_operations_buffer_size sort_buffer_size stored_program_cache
        stored_program_definition_cache table_definition_cache table_open_cache table_open_cache_instances
        table_open_cache_triggers tablespace_definition_cache temptable_max_mmap temptable_max_ram temptable_use_mmap
        tmp_disk_table_size tmp_memory_table_size tmp_table_size transaction_alloc_block_size
        transaction_prealloc_size
    """,
    VariableClass.LOGGING: """
        core_file general_log innodb_buf_dump_status_frequency innodb_deadlock_report innodb_ft_enable_diag_print
        innodb_print_all_deadlocks innodb_print_ddl_logs innodb_status_output innodb_status_output_locks
        log_disabled_statements log_error_services log_error_suppression_list log_error_verbosity log_output
        log_queries_not_using_indexes log_raw log_statements_unsafe_for_binlog log_syslog log_syslog_facility
        log_syslog_include_pid log_syslog_tag log_throttle_queries_not_using_indexes log_timestamps log_warnings
        long_query_time min_examined_row_limit dragnet.log_error_filter_rules profiling profiling_history_size
        slow_launch_time slow_query_log sql_log_off userstat
    """,
    VariableClass.SCHEDULING: """
        binlog_expire_logs_auto_purge binlog_expire_logs_seconds binlog_space_limit event_scheduler
        expire_logs_days flush_time max_binlog_total_size slave_connections_needed_for_purge
    """,
    VariableClass.KEYS: """
        auto_generate_certs binlog_rotate_encryption_master_key_at_startup
        caching_sha2_password_auto_generate_rsa_keys caching_sha2_password_private_key_path
        caching_sha2_password_public_key_path keyring_operations persist_only_admin_x509_subject
        persist_sensitive_variables_in_plaintext require_secure_transport
        sha256_password_auto_generate_rsa_keys sha256_password_private_key_path sha256_password_public_key_path
    """,
    VariableClass.ACCESS: "offline_mode read_only super_read_only transaction_read_only tx_read_only",
    VariableClass.SECURITY: """
        allow_suspicious_udfs init_file persisted_globals_load secure_file_priv skip_grant_tables
    """,
    VariableClass.RECOVERY: """
        innodb_fast_shutdown innodb_force_load_corrupted innodb_force_recovery innodb_read_only innodb_scrub_log
        innodb_scrub_log_speed
    """,
    VariableClass.BUILD: """
        aria_used_for_temp_tables build_id character_set_system innodb_version large_files_support large_page_size
        license lower_case_file_system protocol_version skip_external_locking system_time_zone version
        wsrep_patch_version
    """,
    VariableClass.STATE: """
        character_set_database collation_database error_count external_user gtid_binlog_pos gtid_binlog_state
        gtid_current_pos gtid_executed gtid_owned gtid_purged gtid_seq_no gtid_slave_pos identity in_transaction
        innodb_ft_aux_table innodb_log_checkpoint_now innodb_truncate_temporary_tablespace_now insert_id last_gtid
        last_insert_id log_bin_basename proxy_user pseudo_slave_mode pseudo_thread_id rand_seed1 rand_seed2
        rbr_exec_mode relay_log_basename skip_parallel_replication skip_replication sql_log_bin
        sql_replica_skip_counter sql_slave_skip_counter system_versioning_asof timestamp warning_count
    """,
}
"""The variable names of each class."""

PREFIXES: Mapping[VariableClass, str] = {
    VariableClass.KEPT: "histogram_ optimizer_",
    VariableClass.PLUGIN: """
        component_connection_control. connection_control_ pam_ password_reuse_check_ query_response_time_
        simple_password_check_ validate_password. validate_password_
    """,
    VariableClass.NETWORK: "mysqlx_ tcp_ telemetry.",
    VariableClass.REPLICATION: """
        clone_ group_replication_ replica_ replicate_ report_ rpl_semi_sync_ slave_ wsrep_
    """,
    VariableClass.MEMORY: "aria_pagecache_ innodb_buffer_pool_ key_ performance_schema_ query_cache_ thread_",
    VariableClass.LOGGING: "innodb_monitor_ log_slow_ server_audit_ sql_error_log_ syseventlog.",
    VariableClass.KEYS: "admin_ssl_ admin_tls_ ssl_ tls_",
    VariableClass.BUILD: "have_ version_",
}
"""The name prefixes of each class. NAMES has precedence over these prefixes."""

_SECRETS = ("password", "passwd", "secret", "_pwd", "sst_auth", "access_key", "filekey", "token", "provider_options")
_PASSWORD_RULES = (
    "caching_sha2_password_",
    "connection_control_",
    "password_reuse_check_",
    "sha256_password_",
    "simple_password_check_",
    "validate_password",
)


_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}(\.[a-z0-9_]{1,64})?")


def is_name(text: str) -> bool:
    """Return whether the text is a valid variable name, possibly with a component prefix."""
    return _NAME.fullmatch(text) is not None


@functools.cache
def _by_name() -> Mapping[str, VariableClass]:
    return {name: kind for kind, names in NAMES.items() for name in names.split()}


@functools.cache
def _by_prefix() -> Mapping[str, VariableClass]:
    return {prefix: kind for kind, prefixes in PREFIXES.items() for prefix in prefixes.split()}


def class_of(name: str) -> VariableClass:
    """Return the class of the variable with this lower-case name."""
    named = _by_name().get(name)
    if named is not None:
        return named
    prefixed = (kind for prefix, kind in _by_prefix().items() if name.startswith(prefix))
    return next(prefixed, VariableClass.UNKNOWN)


def is_secret(name: str) -> bool:
    """Return whether the value of a variable with this name may be a secret. Such a value is never recorded."""
    if class_of(name) in (VariableClass.KEPT, VariableClass.STATEMENT) or name.startswith(_PASSWORD_RULES):
        return False
    return any(word in name for word in _SECRETS)


def classes() -> tuple[tuple[VariableClass, tuple[str, ...], tuple[str, ...]], ...]:
    """Return each class with its sorted names and prefixes, for the documentation."""
    return tuple(
        (kind, tuple(sorted(NAMES.get(kind, "").split())), tuple(sorted(PREFIXES.get(kind, "").split())))
        for kind in VariableClass
    )
